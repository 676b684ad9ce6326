//go:build unix

package s3_test

import (
	"testing"

	"github.com/fencegate/fencegate/gateway/s3"
)

func TestTheServerNeedsItsParts(t *testing.T) {
	t.Parallel()
	for _, deps := range []s3.Deps{{}, {Store: dir(t)}, {Keys: keyring(t), Store: dir(t)}} {
		if _, err := s3.New(deps, s3.Options{}); err == nil {
			t.Errorf("New(%+v) succeeded", deps)
		}
	}
}
