package lock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/memredis"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/admin"
)

// A group that was emptied while a lease is held looks like a new one, except for what its servers know of their
// current run.
func TestInitAdmitsNoGroupThatWasEmptiedUnderALease(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 3} {
		t.Run(fmt.Sprintf("%d nodes", n), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg, nodes := inMemory(t, n)
				first := acquireOnAll(t, started(t, cfg), "r")
				for _, n := range nodes {
					flush(t, n)
				}
				second := locker(t, cfg)
				if err := admin.Of(second).Init(t.Context()); !errors.Is(err, lock.ErrQuarantined) {
					t.Errorf("init: %v", err)
				}
				if again, err := second.TryAcquire(t.Context(), "r"); err == nil {
					t.Errorf("a second lease %v while the first lasts until %v", again.Ref(), first.Deadline().Time())
				}
			})
		})
	}
}

// A group with another prefix or database on the same servers does not count as part of this one.
func TestInitAdmitsANewGroupOnServersThatAreInUse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := inMemory(t, 3)
		release(t, acquire(t, started(t, cfg), "r"))
		other, db := cfg, cfg
		other.KeyPrefix = lock.Prefix("other")
		db.Nodes = append([]lock.Node(nil), cfg.Nodes...)
		for i := range db.Nodes {
			db.Nodes[i].DB = 1
		}
		for _, cfg := range []lock.Config{other, db} {
			release(t, acquire(t, started(t, cfg), "r"))
		}
	})
}

func TestInitHasAGroupThatWasRestartedEmptyWaitWhereTheFenceRemembers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		cfg.Armer = &register{}
		l := started(t, cfg)
		first := acquire(t, l, "r", lock.WithTTL(lock.DefaultMaxTTL))
		must(t, l.Close())
		for _, n := range nodes {
			n.Lose(t)
		}
		second := locker(t, cfg)
		if err := admin.Of(second).Init(t.Context()); !errors.Is(err, lock.ErrNoQuorum) {
			t.Errorf("init: %v", err)
		}
		again, err := second.Acquire(t.Context(), "r") // waits for the quarantine, which started automatically
		must(t, err)
		margin := lock.DefaultMaxTTL - second.Validity(lock.WithTTL(lock.DefaultMaxTTL))
		lasted(t, "a second lease after the first", first.Deadline().Since(), margin, 2*time.Second)
		release(t, again)
	})
}

// Readiness checks and requests for leases before the first start begin no quarantine for ten seconds.
func TestWhatIsAskedBeforeAFirstStartBeginsNoQuarantine(t *testing.T) {
	t.Parallel()
	for _, initialised := range []bool{true, false} {
		t.Run(fmt.Sprintf("a first start: %t", initialised), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg, _ := inMemory(t, 3)
				cfg.Armer = &register{}
				l := locker(t, cfg)
				if _, err := l.Ready(t.Context()); !errors.Is(err, lock.ErrNoQuorum) {
					t.Errorf("ping: %v", err)
				}
				if _, err := l.TryAcquire(t.Context(), "r"); !errors.Is(err, lock.ErrNoQuorum) {
					t.Errorf("acquire: %v", err)
				}
				time.Sleep(10 * time.Second)
				if initialised {
					must(t, admin.Of(l).Init(t.Context()))
					release(t, acquire(t, l, "r"))
					return
				}
				time.Sleep(time.Second)
				if left := admin.Of(l).Status(t.Context())[0].Quarantine; left < lock.DefaultMaxTTL-time.Second {
					t.Errorf("nobody starts the group, and %v of a quarantine are left", left)
				}
			})
		})
	}
}

// If the fence or a node knows of leases, the quarantine starts automatically instead of waiting for a first start.
func TestAUsedGroupIsNotLeftToItsFirstStart(t *testing.T) {
	t.Parallel()
	for name, use := range map[string]func(t *testing.T, cfg lock.Config, nodes []*memredis.Node, kept *register){
		"the fence": func(t *testing.T, _ lock.Config, _ []*memredis.Node, kept *register) {
			must(t, kept.Arm(t.Context(), fence.Arming{Resource: "r", Token: 1}))
		},
		"the nodes": func(t *testing.T, cfg lock.Config, nodes []*memredis.Node, _ *register) {
			cfg.Armer = nil
			release(t, acquire(t, started(t, cfg), "r"))
			for _, n := range nodes {
				flush(t, n) // a lease left its trace script
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg, nodes := inMemory(t, 3)
				kept := &register{}
				cfg.Armer, cfg.Epochs = kept, &epochs{}
				use(t, cfg, nodes, kept)
				l := locker(t, cfg)
				if _, err := l.Ready(t.Context()); !errors.Is(err, lock.ErrQuarantined) {
					t.Errorf("ping: %v", err)
				}
				time.Sleep(time.Second) // a first start has 10 s
				if left := admin.Of(l).Status(t.Context())[0].Quarantine; left < lock.DefaultMaxTTL-time.Second {
					t.Errorf("%v of the quarantine are left", left)
				}
			})
		})
	}
}

// away is a fence that is unavailable.
type away struct{ register }

func (*away) Raised(context.Context) (bool, error) { return false, errors.New("away") }

func TestInitNeedsNoFenceWhereAQuorumIsAdmitted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		must(t, started(t, cfg).Close())
		cfg.Armer = &away{}
		l := locker(t, cfg)
		for i, n := range nodes {
			flush(t, n)
			if err := admin.Of(l).Init(t.Context()); (err == nil) != (i == 0) {
				t.Errorf("%d of 3 nodes are empty: %v", i+1, err)
			}
		}
	})
}

// A snapshot of a first start, from before its node was admitted, proves nothing.
func TestInitTakesNoOldSnapshotForItsOwnBeginning(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		must(t, started(t, cfg).Close())
		operator := nodes[0].Client(t)
		must(t, operator.Del(t.Context(), hashKey).Err())
		must(t, operator.HSet(t.Context(), hashKey, "@pending", "0123456789abcdef0123456789abcdef").Err())
		nodes[0].Restart(t)
		second := locker(t, cfg)
		must(t, admin.Of(second).Init(t.Context())) // a quorum is there
		if admin.Of(second).Status(t.Context())[0].Admitted {
			t.Error("admitted without quarantine")
		}
	})
}

// Beside an admitted node that was never used, empty nodes have lost their data: the first start is long over.
func TestInitTakesNoUsedGroupForNew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		must(t, started(t, cfg).Close())
		nodes[2].Freeze() // l has no connection to it yet
		l := locker(t, cfg)
		lease := acquire(t, l, "r")
		must(t, l.Close()) // no message arrives late
		nodes[0].Lose(t)
		nodes[1].Lose(t)
		nodes[2].Thaw()
		second := locker(t, cfg)
		if err := admin.Of(second).Init(t.Context()); !errors.Is(err, lock.ErrQuarantined) {
			t.Errorf("init: %v, while a lease lasts until %v", err, lease.Deadline().Time())
		}
	})
}

// Without a database the nodes keep the epoch. An admission whose quarantine is over, and that was not completed,
// does not look like a first start if the other nodes have an epoch, even without counters.
func TestInitTakesNoLapsedAdmissionForAFirstStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		l := started(t, cfg)
		before := acquireOnAll(t, l, "r")
		release(t, before)
		must(t, nodes[2].Client(t).HDel(t.Context(), hashKey, "c:r").Err()) // as if it had never arrived
		forgets(t, nodes[1])
		must(t, admin.Of(l).Admit(t.Context(), "node-2"))
		forgets(t, nodes[0])
		begun, err := l.BeginAdmission(t.Context(), "node-1")
		must(t, err)
		time.Sleep(lock.DefaultMaxTTL)
		second := locker(t, cfg)
		must(t, admin.Of(second).Init(t.Context())) // a quorum is there
		if st := admin.Of(second).Status(t.Context())[0]; st.Admitted {
			t.Errorf("admitted with epoch %d, after token %d", st.Epoch, before.Ref().Token)
		}
		must(t, l.EndAdmission(t.Context(), begun))
		after := acquire(t, l, "r")
		if token(t, after) <= before.Ref().Token {
			t.Errorf("token %d after %d", token(t, after), before.Ref().Token)
		}
		release(t, after)
	})
}
