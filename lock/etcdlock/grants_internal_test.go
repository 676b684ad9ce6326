package etcdlock

import (
	"testing"
	"time"
)

// The deadlines of leases on a shared etcd lease count from its grant. They are wrong if a clock stopped or was set
// since.
func TestAnEtcdLeaseOfDoubtfulAgeIsNotShared(t *testing.T) {
	t.Parallel()
	const length = time.Second
	start := time.Now()
	one := &granted{start: start, wall: wallClock(start), ends: start.Add(length + ahead)}
	for name, c := range map[string]struct {
		age, wall time.Duration
		want      bool
	}{
		"at once":                     {0, 0, true},
		"a while later":               {ahead / 2, ahead / 2, true},
		"too late":                    {ahead, ahead, false},
		"the rate was adjusted":       {ahead / 2, ahead/2 + maxJump, true},
		"the monotonic clock stood":   {ahead / 2, ahead/2 + maxJump + 1, false},
		"a pause of an hour":          {0, time.Hour, false},
		"the wall clock was set back": {ahead / 2, ahead/2 - maxJump - 1, false},
	} {
		if got := one.serves(length, start.Add(c.age), wallClock(start).Add(c.wall)); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
