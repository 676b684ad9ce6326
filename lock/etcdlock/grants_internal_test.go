package etcdlock

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/fence/clock/clocktest"
	"github.com/fencegate/fencegate/internal/leases"
)

// The etcd lease counts from its grant, also while the machine is suspended.
func TestAnEtcdLeaseOutlivesTheLeasesThatShareIt(t *testing.T) {
	t.Parallel()
	const length = time.Second
	for name, c := range map[string]struct {
		passes, suspended time.Duration
		shared            bool
	}{
		"at once":                  {0, 0, true},
		"a while later":            {ahead / 2, 0, true},
		"too late":                 {ahead, 0, false},
		"after a short suspension": {ahead / 4, ahead / 4, true},
		"after a suspension":       {0, ahead, false},
		"after a long one":         {0, time.Hour, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			clock := clocktest.New()
			one := &granted{start: clock.Now(), lasts: length + ahead}
			time.Sleep(c.passes)
			clock.Suspend(c.suspended)
			if got := one.serves(length); got != c.shared {
				t.Errorf("%s: shared: %v", name, got)
			}
			// The grant may have been answered late, so that a lease is given that the etcd lease does not serve.
			ends, own := leases.Good(one.start, one.lasts), leases.Good(clock.Now(), length)
			if got := one.good(length).Left(); got != min(ends.Left(), own.Left()) {
				t.Errorf("%s: good for %v; the etcd lease for %v, a lease of its own for %v", name, got, ends.Left(), own.Left())
			}
		})
	}
}
