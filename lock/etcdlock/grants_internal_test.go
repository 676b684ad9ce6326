package etcdlock

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/fence/clock/clocktest"
)

// The deadlines of leases on a shared etcd lease count from its grant, also while the machine is suspended.
func TestAnEtcdLeaseIsSharedWhileItOutlivesTheNextLease(t *testing.T) {
	t.Parallel()
	const length = time.Second
	for name, c := range map[string]struct {
		passes, suspended time.Duration
		want              bool
	}{
		"at once":            {0, 0, true},
		"a while later":      {ahead / 2, 0, true},
		"too late":           {ahead, 0, false},
		"a pause":            {0, ahead, false},
		"a pause of an hour": {0, time.Hour, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			clock := clocktest.New()
			one := &granted{start: clock.Now(), lasts: length + ahead}
			time.Sleep(c.passes)
			clock.Suspend(c.suspended)
			if got := one.serves(length); got != c.want {
				t.Errorf("%s: %v", name, got)
			}
		})
	}
}
