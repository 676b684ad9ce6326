package lock_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/internal/memredis"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/admin"
)

// A quarantine lasts as long as a lease may still be held according to the other nodes, and not the MaxTTL of a minute.
func TestAQuarantineEndsWithTheLastLeaseThatTheOthersKnow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		cfg.Epochs = &epochs{}
		l := started(t, cfg)
		lease := acquireOnAll(t, l, "r")
		dropOn(t, nodes[0], "r") // a minority of the others has it
		forgets(t, nodes[1])
		must(t, admin.Of(l).Admit(t.Context(), "node-2"))
		margin := lock.DefaultTTL - l.Validity()
		lasted(t, "admitted after the lease", lease.Deadline().Since(), margin, 10*time.Millisecond)
	})
}

// Answers that come too early, from too few nodes, or from nodes that cannot know, shorten nothing.
func TestAQuarantineIsWholeWhereTheOthersCannotTell(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(t *testing.T, n *memredis.Node){
		"one of them is lost, too": func(t *testing.T, n *memredis.Node) { forgets(t, n) },
		"one of them has a lock that never ends": func(t *testing.T, n *memredis.Node) {
			must(t, n.Client(t).Persist(t.Context(), lockKey("r")).Err())
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg, nodes := inMemory(t, 3)
				cfg.Epochs = &epochs{}
				l := started(t, cfg)
				acquireOnAll(t, l, "r")
				forgets(t, nodes[1])
				asked := time.Now()
				begun, err := l.BeginAdmission(t.Context(), "node-2")
				must(t, err)
				whole := func(what string) {
					t.Helper()
					if err := l.EndAdmission(t.Context(), begun); !errors.Is(err, lock.ErrQuarantined) {
						t.Errorf("%s: admit: %v", what, err)
					}
					if left := admin.Of(l).Status(t.Context())[1].Quarantine; left != lock.DefaultMaxTTL-time.Since(asked) {
						t.Errorf("%s: %v are left of the quarantine", what, left)
					}
				}
				whole("asked at once")
				time.Sleep(time.Second) // a round's answers count as long
				whole("asked after a second")
				spoil(t, nodes[0])
				time.Sleep(time.Second)
				whole(name)
			})
		})
	}
}

// An admission ends with the node's run. Its quarantine is in the append-only file, and does not prevent a new
// admission.
func TestANodeThatRestartsInItsQuarantineIsAdmittedAnew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		cfg.Epochs = &epochs{}
		l := started(t, cfg)
		forgets(t, nodes[1])
		_, err := l.BeginAdmission(t.Context(), "node-2")
		must(t, err)
		nodes[1].Restart(t)
		reconnect(t, l)
		if left := admin.Of(l).Status(t.Context())[1].Quarantine; left != lock.DefaultMaxTTL {
			t.Errorf("%v are left of a quarantine of a minute", left)
		}
		begun := time.Now()
		must(t, admin.Of(l).Admit(t.Context(), "node-2"))
		lasted(t, "admitted after", time.Since(begun), time.Second, 100*time.Millisecond)
	})
}

// Answers after the end of a round do not count, because the other nodes may have been asked for a lost node
// by then.
func TestARoundCountsNoLateAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 1)
		cfg.NodeTimeout = 5 * time.Second
		l := started(t, cfg)
		lease := acquire(t, l, "held")
		release(t, acquire(t, l, "r")) // connects
		nodes[0].Freeze()
		begun := time.Now()
		time.AfterFunc(time.Second+time.Millisecond, nodes[0].Thaw)
		if _, err := l.TryAcquire(t.Context(), "r"); !errors.Is(err, lock.ErrNoQuorum) {
			t.Errorf("acquired with an answer that came %v later: %v", time.Since(begun), err)
		}
		lasted(t, "refused after", time.Since(begun), time.Second, 0)
		time.Sleep(time.Second)
		must(t, lease.Extend(t.Context(), time.Minute))
		release(t, lease)
	})
}

// Without a database the nodes keep the epoch themselves: they may be restarted one after another, and tokens rise.
func TestNodesKeepTheEpochWhereNoStoreDoes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		l := started(t, cfg)
		last := acquire(t, l, "r")
		release(t, last)
		for i, n := range nodes {
			forgets(t, n)
			must(t, admin.Of(l).Admit(t.Context(), cfg.Nodes[i].Name))
			for j, other := range nodes {
				if promised := hashField(t, other, "@epoch"); j != i && promised != strconv.Itoa(i+1) {
					t.Errorf("epoch %d was promised by %s: %q", i+1, cfg.Nodes[j].Name, promised)
				}
			}
			for range 2 {
				next := acquire(t, l, "r")
				if token(t, next) <= last.Ref().Token {
					t.Errorf("token %d after %d", next.Ref().Token, last.Ref().Token)
				}
				release(t, next)
				last = next
			}
			if st := admin.Of(l).Status(t.Context())[i]; !st.Admitted || st.Epoch != int64(i+1) {
				t.Errorf("%+v", st)
			}
		}
		forgets(t, nodes[0])
		forgets(t, nodes[1])
		if err := admin.Of(l).Admit(t.Context(), "node-1"); err == nil {
			t.Error("admitted with the epoch that one node knows")
		}
	})
}

// A rolling restart of the nodes loses no lease: with what keeps the epoch in a database, nodes are admitted
// automatically; with Redis alone an operator admits each.
func TestARollingRestartLosesNoLease(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		nodes   int
		alone   bool
		restart func(n *memredis.Node, t testing.TB)
	}{
		"3 nodes with their data":              {3, false, (*memredis.Node).Restart},
		"3 nodes without":                      {3, false, (*memredis.Node).Lose},
		"5 nodes without":                      {5, false, (*memredis.Node).Lose},
		"Redis alone, 3 nodes with their data": {3, true, (*memredis.Node).Restart},
		"Redis alone, 3 nodes without":         {3, true, (*memredis.Node).Lose},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg, nodes := inMemory(t, c.nodes)
				if !c.alone {
					cfg.Armer, cfg.Epochs = &register{}, &epochs{}
				}
				l := started(t, cfg)
				rolled(t, l, nodes, func(i int) {
					c.restart(nodes[i], t)
					if c.alone {
						reconnect(t, l)
						must(t, admin.Of(l).Admit(t.Context(), cfg.Nodes[i].Name))
					}
				})
			})
		})
	}
}

// rolled restarts the nodes one after another, while leases are held and others are acquired.
func rolled(t *testing.T, l *lock.Locker, nodes []*memredis.Node, restart func(i int)) {
	t.Helper()
	const held = 8
	leases := make([]*lock.Lease, held)
	for i := range leases {
		leases[i] = acquire(t, l, fmt.Sprintf("held/%d", i), lock.WithKeepAlive(lock.KeepAlive{For: time.Hour}))
	}
	ctx, cancel := context.WithCancel(t.Context())
	var others sync.WaitGroup
	var longest time.Duration
	others.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			begun := time.Now()
			lease, err := l.Acquire(ctx, fmt.Sprintf("free/%d", i%10))
			if err != nil {
				if ctx.Err() == nil {
					t.Errorf("acquire: %v", err)
				}
				return
			}
			longest = max(longest, time.Since(begun))
			time.Sleep(time.Second)
			_ = lease.Release(ctx)
		}
	})
	for i := range nodes {
		begun := time.Now()
		restart(i)
		time.Sleep(time.Until(begun.Add(lock.DefaultTTL + 5*time.Second)))
		for _, st := range admin.Of(l).Status(t.Context()) {
			if !st.Admitted {
				t.Errorf("after the restart of node %d: %+v", i+1, st)
			}
		}
	}
	cancel()
	others.Wait()
	for _, lease := range leases {
		if _, err := lease.Grant(); err != nil {
			t.Errorf("a lease was lost: %v", err)
		}
		lease.ReleaseAsync()
	}
	if longest > time.Second {
		t.Errorf("an acquisition took %v", longest)
	}
}

// A lock that lasts for hours, because its node's clock was set back, is not copied and stays a minority's.
func TestANodeIsNotGivenALockThatLastsLongerThanALease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		cfg.Epochs = &epochs{}
		l := started(t, cfg)
		acquireOnAll(t, l, "r").ReleaseAsync()
		synctest.Wait()
		first := nodes[0].Client(t)
		must(t, first.Set(t.Context(), lockKey("r"), fmt.Sprintf("%032xgone", 1), 10*time.Hour).Err())
		forgets(t, nodes[1])
		must(t, admin.Of(l).Admit(t.Context(), "node-2"))
		if left := nodes[1].Client(t).PTTL(t.Context(), lockKey("r")).Val(); left > 0 {
			t.Errorf("node-2 was given a lock of %v", left)
		}
		release(t, acquire(t, l, "r"))
	})
}

// A lock that most of the other nodes have is copied, although another one lasts longer on one of them.
func TestANodeIsGivenTheLockThatMostOthersHold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 5)
		cfg.Epochs = &epochs{}
		l := started(t, cfg)
		most, one := fmt.Sprintf("%032xmost", 1), fmt.Sprintf("%032xone", 2)
		forgets(t, nodes[0])
		begun, err := l.BeginAdmission(t.Context(), "node-1")
		must(t, err)
		must(t, l.EndQuarantine(t.Context(), "node-1"))
		for i, n := range nodes[1:] {
			value, left := most, 30*time.Second
			if i == 2 {
				value, left = one, lock.DefaultMaxTTL
			}
			must(t, n.Client(t).Set(t.Context(), lockKey("r"), value, left).Err())
		}
		must(t, l.EndAdmission(t.Context(), begun))
		if given := nodes[0].Client(t).Get(t.Context(), lockKey("r")).Val(); given != most {
			t.Errorf("node-1 was given %q", given)
		}
	})
}
