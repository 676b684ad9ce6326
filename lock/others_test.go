package lock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/lock"
)

// A quarantine lasts as long as a lease may still be held according to the other nodes, and not the MaxTTL of five
// minutes.
func TestAQuarantineEndsWithTheLastLeaseThatTheOthersKnow(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 3, redisserver.Config{})
	cfg.Epochs = &epochs{}
	l := started(t, cfg)
	lease := acquireEverywhere(t, l, "r", lock.WithTTL(6*time.Second))
	dropAnyLock(t, servers[0].Addr, cfg.KeyPrefix, "r") // as if it had never arrived: a minority of the others has it
	restart(t, servers[1], nil)
	readmit(t, l, "node-2")
	if left := time.Until(lease.Deadline()); left > 0 {
		t.Errorf("admitted %v before the lease was over", left)
	}
}

// Answers that come too early, from too few nodes, or from nodes that cannot know, shorten nothing.
func TestAQuarantineIsWholeWhereTheOthersCannotTell(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(t *testing.T, cfg lock.Config, servers []*redisserver.Server){
		"one of them is lost, too": func(t *testing.T, _ lock.Config, servers []*redisserver.Server) {
			restart(t, servers[0], nil)
		},
		"one of them has a lock that never ends": func(t *testing.T, cfg lock.Config, servers []*redisserver.Server) {
			must(t, client(t, servers[0].Addr).Persist(t.Context(), cfg.KeyPrefix+":lock:r").Err())
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for tries := 1; !quarantinedWhole(t, spoil); tries++ {
				if tries == 6 {
					t.Fatal("the others were never asked at once")
				}
			}
		})
	}
}

// quarantinedWhole reports false if the machine was so slow that the others' answers did not come too early.
func quarantinedWhole(t *testing.T, spoil func(t *testing.T, cfg lock.Config, servers []*redisserver.Server)) bool {
	t.Helper()
	cfg, servers := own(t, 3, redisserver.Config{AppendOnly: redisserver.Always})
	cfg.Epochs = &epochs{}
	l := started(t, cfg)
	acquireEverywhere(t, l, "r", lock.WithTTL(time.Minute))
	restart(t, servers[1], nil)
	asked := time.Now()
	begun, err := admitBegin(t, l, "node-2")
	must(t, err)
	err = admitEnd(t, l, begun)
	if time.Since(asked) >= time.Second {
		return false
	}
	if left := status(t, l)[1].Quarantine; !errors.Is(err, lock.ErrQuarantined) || left < 4*time.Minute {
		t.Errorf("asked at once: %v, %v left", err, left)
	}
	spoil(t, cfg, servers)
	l.Aged(&begun)
	if err := admitEnd(t, l, begun); !errors.Is(err, lock.ErrQuarantined) {
		t.Errorf("admit: %v", err)
	}
	if left := status(t, l)[1].Quarantine; left < 4*time.Minute {
		t.Errorf("only %v are left of the quarantine", left)
	}
	return true
}

// An admission ends with the node's run. Its quarantine is in the append-only file, and does not prevent a new
// admission.
func TestANodeThatRestartsInItsQuarantineIsAdmittedAnew(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 3, redisserver.Config{AppendOnly: redisserver.Always})
	cfg.Epochs = &epochs{}
	l := started(t, cfg)
	restart(t, servers[1], nil)
	if _, err := admitBegin(t, l, "node-2"); err != nil {
		t.Fatal(err)
	}
	restart(t, servers[1], nil)
	if left := status(t, l)[1].Quarantine; left < 4*time.Minute {
		t.Errorf("%v are left of a quarantine of five minutes", left)
	}
	readmit(t, l, "node-2")
}

// Answers after the end of a round do not count, because the other nodes may have been asked for a lost node
// meanwhile.
func TestARoundCountsNoLateAnswer(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 1, redisserver.Config{})
	l := started(t, cfg)
	lease := acquire(t, l, "held", lock.WithTTL(time.Minute))
	release(t, acquire(t, l, "r")) // connects
	freeze(t, servers[0])
	begun, failed, before := time.Now(), make(chan error, 1), l.Attempts()
	go func() {
		_, err := l.TryAcquire(t.Context(), "r", lock.WithTTL(time.Minute))
		failed <- err
	}()
	eventually(t, 20*time.Second, "the round has begun", func() bool { return l.Attempts() > before })
	thaw := time.After(1200 * time.Millisecond)
	for failed != nil {
		select {
		case <-thaw:
			must(t, servers[0].Thaw())
		case err := <-failed:
			failed = nil
			if !errors.Is(err, lock.ErrNoQuorum) {
				t.Errorf("acquired with an answer that came %v later: %v", time.Since(begun), err)
			}
		}
	}
	must(t, servers[0].Thaw())
	must(t, lease.Extend(t.Context(), time.Minute))
	release(t, lease)
}

// readmitAmong is readmit where the nodes keep the epoch. All of them must answer a query, which has a second.
func readmitAmong(t *testing.T, l *lock.Locker, node string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := l.Admit(ctx, node)
	for err != nil && ctx.Err() == nil {
		err = l.Admit(ctx, node)
	}
	must(t, err)
}

// Without a database the nodes keep the epoch themselves: they may be restarted one after another, and tokens rise.
func TestNodesKeepTheEpochWhereNoStoreDoes(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 3, redisserver.Config{})
	l := started(t, cfg)
	last := acquire(t, l, "r")
	release(t, last)
	for i, s := range servers {
		restart(t, s, nil)
		readmitAmong(t, l, cfg.Nodes[i].Name)
		for j, other := range servers {
			promised, err := client(t, other.Addr).HGet(t.Context(), cfg.KeyPrefix+":h", "@epoch").Int()
			if j != i && (err != nil || promised != i+1) {
				t.Errorf("epoch %d was promised by %s: %d, %v", i+1, cfg.Nodes[j].Name, promised, err)
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
		if st := status(t, l)[i]; !st.Admitted || st.Epoch != int64(i+1) {
			t.Errorf("%+v", st)
		}
	}
	restart(t, servers[0], nil)
	restart(t, servers[1], nil)
	if err := l.Admit(t.Context(), "node-1"); err == nil {
		t.Error("admitted with the epoch that one node knows")
	}
}

// A rolling restart of the nodes loses no lease.
func TestARollingRestartLosesNoLease(t *testing.T) {
	t.Parallel()
	for _, n := range []int{3, 5} {
		for _, fsync := range []redisserver.Persistence{redisserver.Always, ""} {
			t.Run(fmt.Sprintf("%d nodes, append only %q", n, fsync), func(t *testing.T) {
				t.Parallel()
				roll(t, func(ttl time.Duration) error {
					cfg, servers := own(t, n, redisserver.Config{AppendOnly: fsync})
					cfg.Armer, cfg.Epochs = &register{}, &epochs{}
					return rolled(t, started(t, cfg), servers, ttl, func(_ string, s *redisserver.Server) { restart(t, s, nil) })
				})
			})
		}
	}
}

// roll repeats a rolling restart with longer leases if some were lost: on a busy machine a renewal takes seconds.
func roll(t *testing.T, restarts func(ttl time.Duration) error) {
	t.Helper()
	for ttl := 4 * time.Second; ; ttl *= 2 {
		err := restarts(ttl)
		if err == nil {
			return
		}
		if ttl > 10*time.Second {
			t.Fatal(err)
		}
	}
}

// rolled restarts the servers one after another, while leases are held. The error says that a restart was noticed.
func rolled(t *testing.T, l *lock.Locker, servers []*redisserver.Server, ttl time.Duration, restart func(node string, s *redisserver.Server)) error {
	t.Helper()
	const held = 100
	leases := make([]*lock.Lease, held)
	for i := range leases {
		leases[i] = acquire(t, l, fmt.Sprintf("held/%d", i), lock.WithTTL(ttl), lock.WithKeepAlive(lock.KeepAlive{For: time.Hour}))
	}
	ctx, cancel := context.WithCancel(t.Context())
	var others sync.WaitGroup
	var longest atomic.Int64
	others.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			begun := time.Now()
			lease, err := l.Acquire(ctx, fmt.Sprintf("free/%d", i%10), lock.WithTTL(ttl))
			if err != nil {
				if ctx.Err() == nil {
					t.Errorf("acquire: %v", err)
				}
				return
			}
			longest.Store(max(longest.Load(), int64(time.Since(begun))))
			_ = lease.Release(ctx)
		}
	})
	for i, s := range servers {
		begun := time.Now()
		restart(fmt.Sprintf("node-%d", i+1), s)
		eventually(t, time.Minute, "the node is admitted again", func() bool {
			all := status(t, l)
			for _, st := range all {
				if !st.Admitted {
					return false
				}
			}
			return true
		})
		t.Logf("node %d: %v", i+1, time.Since(begun).Round(time.Millisecond))
	}
	cancel()
	others.Wait()
	lost := 0
	for _, lease := range leases {
		if _, err := lease.Grant(); err != nil {
			lost++
		}
		lease.ReleaseAsync()
	}
	refused := time.Duration(longest.Load())
	t.Logf("lost %d of %d leases of %v; no acquisition took longer than %v", lost, held, ttl, refused)
	if lost > 0 || refused > ttl+time.Second {
		return errors.New("a restart was noticed")
	}
	return nil
}

// A lock that lasts for hours, because its node's clock was set back, is not copied and stays a minority's.
func TestANodeIsNotGivenALockThatLastsLongerThanALease(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 3, redisserver.Config{})
	cfg.Epochs, cfg.MaxTTL = &epochs{}, 3*time.Second
	l := started(t, cfg)
	var lease *lock.Lease
	key, first := cfg.KeyPrefix+":lock:r", client(t, servers[0].Addr)
	eventually(t, 20*time.Second, "the lock lasts for hours on one node", func() bool { // before it ends
		lease = acquireEverywhere(t, l, "r")
		return first.PExpire(t.Context(), key, 10*time.Hour).Val()
	})
	dropAnyLock(t, servers[1].Addr, cfg.KeyPrefix, "r")
	dropAnyLock(t, servers[2].Addr, cfg.KeyPrefix, "r")
	restart(t, servers[1], nil)
	readmit(t, l, "node-2")
	if left := client(t, servers[1].Addr).PTTL(t.Context(), key).Val(); left > 0 {
		t.Errorf("node-2 was given a lock of %v", left)
	}
	again := acquire(t, l, "r")
	must(t, first.Del(t.Context(), key).Err())
	release(t, again)
	lease.ReleaseAsync()
}

// A lock that most of the other nodes have is copied, although another one lasts longer on one of them.
func TestANodeIsGivenTheLockThatMostOthersHold(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 5, redisserver.Config{})
	cfg.Epochs = &epochs{}
	l := started(t, cfg)
	key := cfg.KeyPrefix + ":lock:r"
	most, one := fmt.Sprintf("%032xmost", 1), fmt.Sprintf("%032xone", 2)
	var given string
	for tries := 0; given == "" && tries < 6; tries++ { // nothing is given if the others answer too late
		restart(t, servers[0], nil)
		begun, err := admitBegin(t, l, "node-1")
		must(t, err)
		must(t, l.EndQuarantine(t.Context(), "node-1"))
		for i, s := range servers[1:] {
			value, left := most, time.Minute
			if i == 2 {
				value, left = one, 2*time.Minute
			}
			must(t, client(t, s.Addr).Set(t.Context(), key, value, left).Err())
		}
		must(t, admitEnd(t, l, begun))
		given = client(t, servers[0].Addr).Get(t.Context(), key).Val()
	}
	if given != most {
		t.Errorf("node-1 was given %q", given)
	}
}
