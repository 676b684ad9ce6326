package lock_test

import (
	"errors"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/memredis"
	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/admin"
)

// lossesInMemory are the same of a node in a bubble.
var lossesInMemory = map[string]func(t *testing.T, n *memredis.Node){
	"killed, restarted empty":             func(t *testing.T, n *memredis.Node) { n.Lose(t) },
	"killed, restarted with all its data": func(t *testing.T, n *memredis.Node) { n.Restart(t) },
	"flushed":                             flush,
	"counters deleted":                    func(t *testing.T, n *memredis.Node) { must(t, n.Client(t).Del(t.Context(), hashKey).Err()) },
	"scripts flushed":                     func(t *testing.T, n *memredis.Node) { must(t, n.Client(t).ScriptFlush(t.Context()).Err()) },
}

func restart(t *testing.T, s *redisserver.Server, _ *redis.Client) {
	must(t, s.Kill())
	must(t, s.Restart(t.Context()))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// hashKey is the key of a node's marker and counters in a bubble, and lockKey that of a resource's lock.
const hashKey = lock.DefaultKeyPrefix + ":h"

func lockKey(resource string) string { return lock.DefaultKeyPrefix + ":lock:" + resource }

// hashField is a field of a node's marker or a counter in a bubble; "": it has none.
func hashField(t *testing.T, n *memredis.Node, field string) string {
	t.Helper()
	value, err := n.Client(t).HGet(t.Context(), hashKey, field).Result()
	if !errors.Is(err, redis.Nil) {
		must(t, err)
	}
	return value
}

// setCounter sets a resource's counter on a node in a bubble.
func setCounter(t *testing.T, n *memredis.Node, resource string, token fence.Token) {
	t.Helper()
	must(t, n.Client(t).HSet(t.Context(), hashKey, "c:"+resource, int64(token)).Err())
}

// flush deletes all keys of a node in a bubble, which keeps its connections and scripts.
func flush(t *testing.T, n *memredis.Node) {
	t.Helper()
	must(t, n.Client(t).FlushAll(t.Context()).Err())
}

// reconnect lets a Locker in a bubble find that the connections of its queries ended with a node's restart: it has no
// socket to look at before it uses them.
func reconnect(t *testing.T, l *lock.Locker) {
	t.Helper()
	_ = admin.Of(l).Status(t.Context())
}

// dropOn deletes a lock on a node in a bubble, as if it had never arrived.
func dropOn(t *testing.T, n *memredis.Node, resource string) {
	t.Helper()
	if deleted := n.Client(t).Del(t.Context(), lockKey(resource)).Val(); deleted != 1 {
		t.Fatalf("the node has no lock of %q", resource)
	}
}

// acquireOnAll acquires a lease in a bubble and waits until its messages have reached every node.
func acquireOnAll(t *testing.T, l *lock.Locker, resource string, opts ...lock.AcquireOption) *lock.Lease {
	t.Helper()
	lease := acquire(t, l, resource, opts...)
	synctest.Wait()
	return lease
}

// lasted fails unless a time in a bubble is at least least, and at most slack longer.
func lasted(t *testing.T, what string, is, least, slack time.Duration) {
	t.Helper()
	if is < least || is > least+slack {
		t.Errorf("%s: %v; want %v to %v", what, is, least, least+slack)
	}
}

func TestANodeThatLostDataOrItsRunGrantsNothingUntilItsQuarantineIsOver(t *testing.T) {
	t.Parallel()
	for name, lose := range lossesInMemory {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg, nodes := inMemory(t, 1)
				cfg.Epochs = &epochs{}
				l := started(t, cfg)
				before := acquire(t, l, "r")
				lost := time.Now()
				lose(t, nodes[0])
				second := locker(t, cfg) // never saw the node before
				for _, l := range []*lock.Locker{l, second} {
					if _, err := l.TryAcquire(t.Context(), "other"); !errors.Is(err, lock.ErrQuarantined) {
						t.Fatalf("acquire after the loss: %v", err)
					}
					reconnect(t, l)
					if _, err := l.Ready(t.Context()); !errors.Is(err, lock.ErrQuarantined) {
						t.Fatalf("ping after the loss: %v", err)
					}
				}
				must(t, admin.Of(l).Admit(t.Context(), "node-1"))
				lasted(t, "admitted again after", time.Since(lost), lock.DefaultMaxTTL, 10*time.Millisecond)
				for _, l := range []*lock.Locker{l, second} {
					after := acquire(t, l, "r")
					if token(t, after) <= before.Ref().Token {
						t.Errorf("token %d after %d", token(t, after), before.Ref().Token)
					}
					release(t, after)
				}
			})
		})
	}
}

// A real server's scripts are gone after a restart, although its append-only file has all its data.
func TestAServerThatRestartsWithItsDataIsNotAdmitted(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 1, redisserver.Config{AppendOnly: redisserver.Always})
	l := started(t, cfg)
	acquire(t, l, "r", lock.WithTTL(maxTTL))
	marker := func() string {
		return client(t, servers[0].Addr).HGet(t.Context(), prefixOf(cfg)+":h", "@incarnation").Val()
	}
	before := marker()
	restart(t, servers[0], nil)
	if st := status(t, l)[0]; st.Err != nil || st.Admitted || marker() != before {
		t.Errorf("%+v, of incarnation %q after %q", st, marker(), before)
	}
	if held := client(t, servers[0].Addr).Exists(t.Context(), prefixOf(cfg)+":lock:r").Val(); held != 1 {
		t.Error("the lock is gone: this test shows nothing")
	}
}

// admit is readmit without waiting for the quarantine, for tests that are not about it. Leases may be long then.
func admit(t *testing.T, l *lock.Locker, node string) {
	t.Helper()
	begun, err := l.BeginAdmission(t.Context(), node)
	must(t, err)
	must(t, l.EndQuarantine(t.Context(), node))
	must(t, l.EndAdmission(t.Context(), begun))
}

// The danger is this order: A holds token 5 and has not written; the counters are lost; B gets 3. With the epoch B
// gets more than 5.
func TestTokensRiseThoughNodesLoseTheirCountersOneAfterTheOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		cfg.Epochs = &epochs{}
		l := started(t, cfg)
		var last fence.Token
		for round := range 4 {
			for range 3 {
				lease := acquire(t, l, "r")
				got := token(t, lease)
				if got <= last {
					t.Fatalf("round %d: token %d after %d", round, got, last)
				}
				last = got
				release(t, lease)
			}
			for i, n := range nodes {
				flush(t, n)
				must(t, admin.Of(l).Admit(t.Context(), cfg.Nodes[i].Name))
			}
		}
	})
}

func TestAMinorityThatLostItsDataDoesNotStopTheOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		l := started(t, cfg)
		release(t, acquire(t, l, "r"))
		nodes[1].Lose(t)
		lease := acquire(t, l, "r")
		must(t, lease.Extend(t.Context(), time.Minute))
		release(t, lease)
		if st := admin.Of(l).Status(t.Context()); !st[0].Admitted || st[1].Admitted || !st[2].Admitted {
			t.Errorf("status %+v", st)
		}
	})
}

// While a holder's lease exists on the remaining nodes, a node that lost its data must not help another one to a
// quorum.
func TestQuarantineKeepsTheHolderAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		cfg.Armer, cfg.Epochs = &register{}, &epochs{}
		l := started(t, cfg)
		holder := acquireOnAll(t, l, "r")
		dropOn(t, nodes[0], "r") // the quorum is nodes 2 and 3
		nodes[1].Lose(t)
		initialise(t, locker(t, cfg)) // another Init changes nothing
		other := locker(t, cfg)
		for {
			lease, err := other.TryAcquire(t.Context(), "r")
			if err == nil {
				if _, err := holder.Grant(); err == nil {
					t.Fatal("two holders at the same time")
				}
				release(t, lease)
				return
			}
			if !lock.Retryable(err) {
				t.Fatal(err)
			}
			if holder.Deadline().Since() > 2*time.Second { // the safety margin is 302 ms
				t.Fatalf("%v after the lease: %v", holder.Deadline().Since(), err)
			}
			time.Sleep(250 * time.Millisecond)
		}
	})
}

func TestArmedLockersAdmitLostNodesByThemselves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		cfg.Armer, cfg.Epochs = &register{}, &epochs{}
		l := started(t, cfg)
		first := acquire(t, l, "r")
		release(t, first)
		for _, n := range nodes {
			flush(t, n)
		}
		lost := time.Now()
		if _, err := l.TryAcquire(t.Context(), "r"); !errors.Is(err, lock.ErrQuarantined) {
			t.Fatalf("after the loss: %v", err)
		}
		second, err := l.Acquire(t.Context(), "r")
		must(t, err)
		lasted(t, "granted again after", time.Since(lost), lock.DefaultMaxTTL, 2*time.Second)
		if token(t, second) <= first.Ref().Token {
			t.Error("token fell")
		}
		time.Sleep(time.Second) // the third node
		for _, st := range admin.Of(l).Status(t.Context()) {
			if !st.Admitted {
				t.Errorf("%+v", st)
			}
		}
		release(t, second)
	})
}

func TestEmbeddedNodesAreAdmittedAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		cfg.Embedded, cfg.Armer = true, &register{}
		l := started(t, cfg)
		first := acquire(t, l, "r")
		release(t, first)
		for _, n := range nodes {
			flush(t, n)
		}
		must(t, admin.Of(l).Init(t.Context()))
		second, err := l.TryAcquire(t.Context(), "r")
		must(t, err)
		if token(t, second) <= first.Ref().Token {
			t.Error("token fell")
		}
		release(t, second)
	})
}

func TestInitLeavesAUsedGroupsEmptyNodeAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		l := started(t, cfg)
		lease := acquire(t, l, "r")
		flush(t, nodes[0])
		must(t, admin.Of(l).Init(t.Context()))
		if admin.Of(l).Status(t.Context())[0].Admitted {
			t.Fatal("admitted without quarantine")
		}
		flush(t, nodes[1])
		if err := admin.Of(l).Init(t.Context()); !errors.Is(err, lock.ErrNoQuorum) || !errors.Is(err, lock.ErrQuarantined) {
			t.Fatalf("init without a quorum: %v", err)
		}
		_ = lease.Release(t.Context())
	})
}

func TestInitNeedsEveryNodeOfAFreshGroup(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		nodes[2].Stop()
		if err := admin.Of(locker(t, cfg)).Init(t.Context()); !errors.Is(err, lock.ErrNoQuorum) {
			t.Fatalf("got %v", err)
		}
	})
}

func TestManyProcessesMayInitialiseAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		for _, n := range nodes { // each gets the others' messages in another order
			n.Requests.Delay(func() time.Duration { return rand.N(5 * time.Millisecond) })
		}
		errs := make(chan error)
		const processes = 5
		for range processes {
			l := locker(t, cfg)
			go func() { errs <- admin.Of(l).Init(t.Context()) }()
		}
		for range processes {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		for _, st := range admin.Of(locker(t, cfg)).Status(t.Context()) {
			if !st.Admitted {
				t.Errorf("%s is not admitted", st.Name)
			}
		}
	})
}

func TestAdmissionWithAnEpochFromBeforeAnotherIsVoid(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 1)
		cfg.Epochs = &epochs{}
		l := started(t, cfg)
		flush(t, nodes[0])
		slow, err := l.BeginAdmission(t.Context(), "node-1")
		must(t, err)
		if err := l.EndAdmission(t.Context(), slow); !errors.Is(err, lock.ErrQuarantined) {
			t.Fatalf("admit within the quarantine: %v", err)
		}
		must(t, l.EndQuarantine(t.Context(), "node-1"))
		admit(t, locker(t, cfg), "node-1")
		before := acquire(t, l, "r")
		release(t, before)
		if err := l.EndAdmission(t.Context(), slow); err == nil {
			t.Fatal("the slow admission took effect")
		}
		if got := token(t, acquire(t, l, "r")); got <= before.Ref().Token {
			t.Errorf("token %d after %d", got, before.Ref().Token)
		}
	})
}

func TestAdmissionIsVoidWhenTheNodeLosesItsDataAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 1)
		cfg.Epochs = &epochs{}
		l := started(t, cfg)
		flush(t, nodes[0])
		begun, err := l.BeginAdmission(t.Context(), "node-1")
		must(t, err)
		flush(t, nodes[0]) // removes the quarantine, too
		if err := l.EndAdmission(t.Context(), begun); err == nil {
			t.Fatal("admitted without the quarantine")
		}
	})
}

func TestReadmissionNeedsAnEpochStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 1)
		l := started(t, cfg)
		flush(t, nodes[0])
		if err := admin.Of(l).Admit(t.Context(), "node-1"); err == nil {
			t.Fatal("admitted, though tokens could fall")
		}
		var invalid *fence.InvalidError
		if err := admin.Of(l).Admit(t.Context(), "no-such-node"); !errors.As(err, &invalid) {
			t.Fatalf("got %v", err)
		}
	})
}

// Of two admissions the one with the older epoch may end last, while its nonce is the node's: tokens would fall.
func TestAnAdmissionNeverLowersTheBase(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 1)
		cfg.Epochs = &epochs{}
		l := started(t, cfg)
		flush(t, nodes[0])
		begun, err := l.BeginAdmission(t.Context(), "node-1")
		must(t, err)
		must(t, l.EndQuarantine(t.Context(), "node-1"))
		for _, base := range []int64{begun.Base, begun.Base + 1<<32} {
			must(t, nodes[0].Client(t).HSet(t.Context(), hashKey, "@base", base).Err())
			if err := l.EndAdmission(t.Context(), begun); err == nil {
				t.Errorf("admitted with base %d where it was %d", begun.Base, base)
			}
		}
		if st := admin.Of(l).Status(t.Context())[0]; st.Err != nil || st.Admitted {
			t.Errorf("%+v", st)
		}
	})
}
