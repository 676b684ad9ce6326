package gateway

import (
	"errors"
	"testing"

	"github.com/fencegate/fencegate/client/wire"
	"github.com/fencegate/fencegate/fence/leasing"
)

// Without a named part the API would report that there is no quorum of Redis nodes.
func TestWhatPostgresGivesNoLeaseForHasItsName(t *testing.T) {
	t.Parallel()
	for _, err := range []error{leasing.ErrUnavailable, leasing.ErrClosed} {
		unavailable, ok := errors.AsType[*leasing.UnavailableError](named(err))
		if !ok || unavailable.Part != wire.PartPostgres || !errors.Is(unavailable, err) {
			t.Errorf("%v: %v; want one of PostgreSQL's", err, unavailable)
		}
	}
}
