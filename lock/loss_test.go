package lock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
)

// losses are the ways in which a node loses its data or its run. Each must be detected: none of these nodes may grant
// before its quarantine is over.
var losses = map[string]struct {
	server redisserver.Config
	lose   func(t *testing.T, s *redisserver.Server, c *redis.Client)
}{
	"killed, restarted empty": {lose: restart},
	"killed, restarted with all its data": {
		server: redisserver.Config{AppendOnly: redisserver.Always},
		lose:   restart,
	},
	"flushed": {lose: func(t *testing.T, _ *redisserver.Server, c *redis.Client) {
		must(t, c.FlushAll(t.Context()).Err())
	}},
	"counters deleted": {lose: func(t *testing.T, _ *redisserver.Server, c *redis.Client) {
		must(t, c.Del(t.Context(), c.Keys(t.Context(), "*:h").Val()...).Err())
	}},
	"scripts flushed": {lose: func(t *testing.T, _ *redisserver.Server, c *redis.Client) {
		must(t, c.ScriptFlush(t.Context()).Err())
	}},
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

func TestANodeThatLostDataOrItsRunGrantsNothingUntilItsQuarantineIsOver(t *testing.T) {
	t.Parallel()
	for name, loss := range losses {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg, servers := own(t, 1, loss.server)
			cfg.MaxTTL, cfg.Epochs = 600*time.Millisecond, &epochs{}
			l := started(t, cfg)
			before := acquire(t, l, "r")
			lost := time.Now()
			loss.lose(t, servers[0], client(t, servers[0].Addr))
			if _, err := tryAcquire(t, l, "other"); !errors.Is(err, lock.ErrQuarantined) {
				t.Fatalf("acquire after the loss: %v", err)
			}
			if err := ping(t, l); !errors.Is(err, lock.ErrQuarantined) {
				t.Fatalf("ping after the loss: %v", err)
			}
			// A second client, which never saw the node before, detects the loss too.
			second := locker(t, cfg)
			if _, err := tryAcquire(t, second, "other"); !errors.Is(err, lock.ErrQuarantined) {
				t.Fatalf("acquire by a newcomer: %v", err)
			}
			readmit(t, l, "node-1")
			if passed := time.Since(lost); passed < cfg.MaxTTL {
				t.Errorf("admitted again after %v; the quarantine is %v", passed, cfg.MaxTTL)
			}
			for _, l := range []*lock.Locker{l, second} {
				after := acquire(t, l, "r")
				if token(t, after) <= before.Ref().Token {
					t.Errorf("token %d after %d", token(t, after), before.Ref().Token)
				}
				release(t, after)
			}
		})
	}
}

func readmit(t *testing.T, l *lock.Locker, node string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	must(t, patiently(ctx, func() error { return l.Admit(ctx, node) }))
}

// admit is readmit without waiting for the quarantine, for tests that are not about it. Leases may be long then.
func admit(t *testing.T, l *lock.Locker, node string) {
	t.Helper()
	begun, err := admitBegin(t, l, node)
	must(t, err)
	must(t, l.EndQuarantine(t.Context(), node))
	must(t, admitEnd(t, l, begun))
}

// The danger is this order: A holds token 5 and has not written; the counters are lost; B gets 3. With the epoch B
// gets more than 5.
func TestTokensRiseThoughNodesLoseTheirCountersOneAfterTheOther(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 3, redisserver.Config{})
	cfg.Epochs = &epochs{}
	l := started(t, cfg)
	var last fence.Token
	for round := range 6 {
		for range 3 {
			lease := acquire(t, l, "r")
			got := token(t, lease)
			if got <= last {
				t.Fatalf("round %d: token %d after %d", round, got, last)
			}
			last = got
			release(t, lease)
		}
		for i, s := range servers {
			must(t, client(t, s.Addr).FlushAll(t.Context()).Err())
			admit(t, l, cfg.Nodes[i].Name)
		}
	}
}

func TestAMinorityThatLostItsDataDoesNotStopTheOthers(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 3, redisserver.Config{})
	l := started(t, cfg)
	release(t, acquire(t, l, "r"))
	restart(t, servers[1], nil)
	lease := acquire(t, l, "r")
	must(t, lease.Extend(t.Context(), time.Minute))
	release(t, lease)
	if st := status(t, l); !st[0].Admitted || st[1].Admitted || !st[2].Admitted {
		t.Errorf("status %+v", st)
	}
}

// While a holder's lease exists on the remaining nodes, a node that lost its data must not help another one to a
// quorum.
func TestQuarantineKeepsTheHolderAlone(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 3, redisserver.Config{})
	cfg.MaxTTL, cfg.Armer, cfg.Epochs = 4*time.Second, &register{}, &epochs{}
	l := started(t, cfg)
	holder := acquireEverywhere(t, l, "r", lock.WithTTL(4*time.Second))
	dropAnyLock(t, cfg.Nodes[0].Addr, cfg.KeyPrefix, "r") // as if it had never arrived: the quorum is nodes 2 and 3
	restart(t, servers[1], nil)
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
		if !lock.Retryable(err) && !errors.Is(err, lock.ErrLost) { // its own TTL may run out meanwhile
			t.Fatal(err)
		}
	}
}

func TestArmedLockersAdmitLostNodesByThemselves(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 3, redisserver.Config{})
	cfg.MaxTTL, cfg.Armer, cfg.Epochs = 300*time.Millisecond, &register{}, &epochs{}
	l := started(t, cfg)
	first := acquire(t, l, "r")
	release(t, first)
	testenv.Paced(t, cfg.MaxTTL, func(time.Duration) error {
		for _, s := range servers {
			must(t, client(t, s.Addr).FlushAll(t.Context()).Err())
		}
		lease, err := l.TryAcquire(t.Context(), "r")
		if err == nil {
			release(t, lease)
			return errors.New("the nodes were admitted again before they were asked")
		}
		if !errors.Is(err, lock.ErrQuarantined) {
			return err
		}
		return nil
	})
	eventually(t, 20*time.Second, "all nodes are admitted again", func() bool {
		for _, st := range l.Status(t.Context()) {
			if !st.Admitted {
				return false
			}
		}
		return true
	})
	second := acquire(t, l, "r")
	if token(t, second) <= first.Ref().Token {
		t.Error("token fell")
	}
	release(t, second)
}

func TestEmbeddedNodesAreAdmittedAtOnce(t *testing.T) {
	t.Parallel()
	cfg, minis := embedded(t, 3)
	cfg.Embedded, cfg.Armer = true, &register{}
	l := started(t, cfg)
	first := acquire(t, l, "r")
	release(t, first)
	for _, m := range minis {
		m.FlushAll()
	}
	initialise(t, l)
	second := acquire(t, l, "r")
	if token(t, second) <= first.Ref().Token {
		t.Error("token fell")
	}
	release(t, second)
}

func TestInitLeavesAUsedGroupsEmptyNodeAlone(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 3, redisserver.Config{})
	l := started(t, cfg)
	lease := acquire(t, l, "r")
	must(t, client(t, servers[0].Addr).FlushAll(t.Context()).Err())
	initialise(t, l)
	if l.Status(t.Context())[0].Admitted {
		t.Fatal("admitted without quarantine")
	}
	must(t, client(t, servers[1].Addr).FlushAll(t.Context()).Err())
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := patiently(ctx, func() error { return l.Init(ctx) }); !errors.Is(err, lock.ErrNoQuorum) || !errors.Is(err, lock.ErrQuarantined) {
		t.Fatalf("init without a quorum: %v", err)
	}
	_ = lease.Release(t.Context())
}

func TestInitNeedsEveryNodeOfAFreshGroup(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 3, redisserver.Config{})
	must(t, servers[2].Kill())
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := locker(t, cfg).Init(ctx); !errors.Is(err, lock.ErrNoQuorum) {
		t.Fatalf("got %v", err)
	}
}

func TestManyProcessesMayInitialiseAtOnce(t *testing.T) {
	t.Parallel()
	cfg := shared(t, 3)
	errs := make(chan error)
	const processes = 5
	for range processes {
		l := locker(t, cfg)
		go func() {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			errs <- patiently(ctx, func() error { return l.Init(ctx) })
		}()
	}
	for range processes {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	for _, st := range status(t, locker(t, cfg)) {
		if !st.Admitted {
			t.Errorf("%s is not admitted", st.Name)
		}
	}
}

func TestAdmissionWithAnEpochFromBeforeAnotherIsVoid(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 1, redisserver.Config{})
	cfg.Epochs = &epochs{}
	l := started(t, cfg)
	must(t, client(t, servers[0].Addr).FlushAll(t.Context()).Err())
	slow, err := admitBegin(t, l, "node-1")
	must(t, err)
	if err := admitEnd(t, l, slow); !errors.Is(err, lock.ErrQuarantined) {
		t.Fatalf("admit within the quarantine: %v", err)
	}
	must(t, l.EndQuarantine(t.Context(), "node-1"))
	admit(t, locker(t, cfg), "node-1")
	before := acquire(t, l, "r")
	release(t, before)
	if err := admitEnd(t, l, slow); err == nil {
		t.Fatal("the slow admission took effect")
	}
	if got := token(t, acquire(t, l, "r")); got <= before.Ref().Token {
		t.Errorf("token %d after %d", got, before.Ref().Token)
	}
}

func TestAdmissionIsVoidWhenTheNodeLosesItsDataAgain(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 1, redisserver.Config{})
	cfg.MaxTTL, cfg.Epochs = time.Minute, &epochs{}
	l := started(t, cfg)
	flush := func() { must(t, client(t, servers[0].Addr).FlushAll(t.Context()).Err()) }
	flush()
	begun, err := admitBegin(t, l, "node-1")
	must(t, err)
	flush() // removes the quarantine, too
	if err := admitEnd(t, l, begun); err == nil {
		t.Fatal("admitted without the quarantine")
	}
}

func TestReadmissionNeedsAnEpochStore(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 1, redisserver.Config{})
	l := started(t, cfg)
	must(t, client(t, servers[0].Addr).FlushAll(t.Context()).Err())
	if err := l.Admit(t.Context(), "node-1"); err == nil {
		t.Fatal("admitted, though tokens could fall")
	}
	var invalid *fence.InvalidError
	if err := l.Admit(t.Context(), "no-such-node"); !errors.As(err, &invalid) {
		t.Fatalf("got %v", err)
	}
}

// Of two admissions the one with the older epoch may end last, while its nonce is the node's: tokens would fall.
func TestAnAdmissionNeverLowersTheBase(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 1, redisserver.Config{})
	cfg.Epochs = &epochs{}
	l := started(t, cfg)
	admin := client(t, servers[0].Addr)
	must(t, admin.FlushAll(t.Context()).Err())
	begun, err := admitBegin(t, l, "node-1")
	must(t, err)
	must(t, l.EndQuarantine(t.Context(), "node-1"))
	for _, base := range []int64{begun.Base(), begun.Base() + 1<<32} {
		must(t, admin.HSet(t.Context(), cfg.KeyPrefix+":h", "@base", base).Err())
		if err := admitEnd(t, l, begun); err == nil {
			t.Errorf("admitted with base %d where it was %d", begun.Base(), base)
		}
	}
	if st := status(t, l)[0]; st.Err != nil || st.Admitted {
		t.Errorf("%+v", st)
	}
}
