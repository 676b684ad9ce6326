package lock_test

import (
	"errors"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/lock"
)

// parked is a group with one node that keeps its data across a restart, and a lease of a minute on r.
func parked(t *testing.T, cfg lock.Config) (l *lock.Locker, lease *lock.Lease) {
	t.Helper()
	l = started(t, cfg)
	lease = acquire(t, l, "r", lock.WithTTL(time.Minute))
	park(t, l)
	return l, lease
}

// park parks the only node, patiently.
func park(t *testing.T, l *lock.Locker) {
	t.Helper()
	must(t, patiently(t.Context(), func() error { return l.Park(t.Context(), "node-1") }))
}

// The parked only node grants nothing. After a restart with all data it is admitted at once, and not after five
// minutes: the lease is still held, and tokens rise.
func TestAParkedNodeIsAdmittedAtOnceAfterItsRestart(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 1, redisserver.Config{AppendOnly: redisserver.Always})
	cfg.Epochs = &records{}
	l, lease := parked(t, cfg)
	if _, err := tryAcquire(t, l, "other"); !errors.Is(err, lock.ErrQuarantined) {
		t.Errorf("acquire from a parked node: %v", err)
	}
	if st := status(t, l)[0]; !st.Parked || st.Admitted {
		t.Errorf("parked: %+v", st)
	}
	restart(t, servers[0], nil)
	if _, err := tryAcquire(t, l, "other"); !errors.Is(err, lock.ErrQuarantined) {
		t.Errorf("acquire after the restart: %v", err)
	}
	readmit(t, l, "node-1")
	if _, err := tryAcquire(t, locker(t, cfg), "r"); !errors.Is(err, lock.ErrHeld) {
		t.Errorf("acquire what is held: %v", err)
	}
	must(t, lease.Extend(t.Context(), time.Minute))
	before := lease.Ref().Token
	release(t, lease)
	next := acquire(t, l, "r")
	if token(t, next) <= before {
		t.Errorf("token %d after %d", token(t, next), before)
	}
	release(t, next)
}

// quarantined begins to admit a node, and fails if the admission could end at once.
func quarantined(t *testing.T, l *lock.Locker) {
	t.Helper()
	begun, err := admitBegin(t, l, "node-1")
	must(t, err)
	if err := admitEnd(t, l, begun); !errors.Is(err, lock.ErrQuarantined) {
		t.Errorf("admit: %v", err)
	}
}

// A parked node is admitted at once only one time, so a copy of its data that is restored later is not.
func TestAParkedNodeIsAdmittedAtOnceOnlyOnce(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 1, redisserver.Config{AppendOnly: redisserver.Always})
	cfg.Epochs = &epochs{}
	l, _ := parked(t, cfg)
	admin, h := client(t, servers[0].Addr), cfg.KeyPrefix+":h"
	copied := admin.HGetAll(t.Context(), h).Val()
	restart(t, servers[0], nil)
	readmit(t, l, "node-1")
	must(t, errors.Join(admin.Del(t.Context(), h).Err(), admin.HSet(t.Context(), h, copied).Err(), admin.ScriptFlush(t.Context()).Err()))
	quarantined(t, l)
}

// A node that comes back without its data, or after the epoch was raised, is quarantined like any lost one.
func TestAParkedNodeThatMayHaveLostSomethingIsQuarantined(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(t *testing.T, servers []*redisserver.Server, cfg lock.Config, kept *records){
		"its data is gone": func(t *testing.T, servers []*redisserver.Server, _ lock.Config, _ *records) {
			must(t, client(t, servers[0].Addr).FlushAll(t.Context()).Err())
		},
		"the epoch was raised": func(t *testing.T, _ []*redisserver.Server, _ lock.Config, kept *records) {
			_, err := kept.RaiseEpoch(t.Context(), 0)
			must(t, err)
		},
		"PostgreSQL is another": func(_ *testing.T, _ []*redisserver.Server, _ lock.Config, kept *records) { kept.anew() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg, servers := own(t, 1, redisserver.Config{AppendOnly: redisserver.Always})
			kept := &records{}
			cfg.Epochs = kept
			l, _ := parked(t, cfg)
			spoil(t, servers, cfg, kept)
			restart(t, servers[0], nil)
			quarantined(t, l)
		})
	}
}

// A process that admits lost nodes does not touch a parked one until its restart.
func TestAParkedNodeIsLeftAloneUntilItsRestart(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 1, redisserver.Config{AppendOnly: redisserver.Always})
	cfg.Epochs, cfg.Armer = &records{}, &register{}
	l, _ := parked(t, cfg)
	<-time.After(4 * time.Second) // it looks every one to two seconds
	if client(t, servers[0].Addr).HExists(t.Context(), cfg.KeyPrefix+":h", "@pending").Val() {
		t.Error("an admission has begun")
	}
	restart(t, servers[0], nil)
	eventually(t, 20*time.Second, "the node is admitted", func() bool { return status(t, l)[0].Admitted })
}

func TestWhatIsNotAdmittedIsNotParked(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 1, redisserver.Config{AppendOnly: redisserver.Always})
	if err := started(t, cfg).Park(t.Context(), "node-1"); !errors.Is(err, fence.ErrInvalid) {
		t.Errorf("without an epoch store: %v", err)
	}
	cfg.Epochs = &epochs{}
	l := locker(t, cfg)
	park(t, l)
	if err := l.Park(t.Context(), "node-1"); err == nil {
		t.Error("parked twice")
	}
	readmit(t, l, "node-1") // without a restart
	restart(t, servers[0], nil)
	if err := l.Park(t.Context(), "node-1"); err == nil {
		t.Error("parked a lost node")
	}
	if err := l.Park(t.Context(), "node-9"); !errors.Is(err, fence.ErrInvalid) {
		t.Errorf("a stranger: %v", err)
	}
}
