package lock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/lock"
)

// bestEffort is a configuration whose quarantine is too long for any test to wait for.
func bestEffort(t *testing.T, n int, server redisserver.Config) (lock.Config, []*redisserver.Server, *register) {
	t.Helper()
	cfg, servers := own(t, n, server)
	fences := &register{}
	cfg.BestEffort, cfg.Armer, cfg.Epochs, cfg.MaxTTL = true, fences, &epochs{}, time.Hour
	return cfg, servers, fences
}

// fencedWrite reports whether the fence accepts a write: only the newest token may write.
func (r *register) fencedWrite(resource string, token fence.Token) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.tokens[resource] == token
}

func TestBestEffortNeedsAnArmer(t *testing.T) {
	t.Parallel()
	cfg := lock.Config{Nodes: nodesAt("127.0.0.1:1"), BestEffort: true, Epochs: &epochs{}}
	if err := cfg.Validate(); !errors.Is(err, fence.ErrInvalid) {
		t.Errorf("without an Armer: %v", err)
	}
	if cfg.Armer = (&register{}); cfg.Validate() != nil {
		t.Errorf("with one: %v", cfg.Validate())
	}
}

func TestABestEffortNodeGrantsAtOnceAfterEachLoss(t *testing.T) {
	t.Parallel()
	for name, loss := range losses {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg, servers, fences := bestEffort(t, 1, loss.server)
			l := started(t, cfg)
			older := acquire(t, l, "r", lock.WithTTL(time.Hour))
			loss.lose(t, servers[0], client(t, servers[0].Addr))
			if loss.server.AppendOnly != "" || name == "scripts flushed" || name == "counters deleted" {
				dropLock(t, servers[0].Addr, cfg.KeyPrefix, "r") // the lock was kept
			}
			begun := time.Now()
			newer := acquire(t, l, "r", lock.WithTTL(time.Hour)) // within 20 s, although the quarantine is an hour
			t.Logf("after %v", time.Since(begun))
			if _, err := older.Grant(); err != nil {
				t.Errorf("the older holder does not believe in its lease any more, so this test shows nothing: %v", err)
			}
			if token(t, newer) <= token(t, older) {
				t.Errorf("token %d after %d", token(t, newer), token(t, older))
			}
			if fences.fencedWrite("r", token(t, older)) || !fences.fencedWrite("r", token(t, newer)) {
				t.Error("the fence lets another write than the newest")
			}
			if st := status(t, l)[0]; !st.BestEffort || !st.Admitted {
				t.Errorf("%+v", st)
			}
		})
	}
}

// Redis alone does not make tokens rise here: the fence is above the counters that the nodes lost.
func TestBestEffortTokensRiseThroughTheLossOfEveryNode(t *testing.T) {
	t.Parallel()
	cfg, servers, _ := bestEffort(t, 3, redisserver.Config{})
	cfg.Epochs = nil
	l := started(t, cfg)
	var last fence.Token
	for range 4 {
		for range 5 {
			lease := acquire(t, l, "r")
			if got := token(t, lease); got <= last {
				t.Fatalf("token %d after %d", got, last)
			}
			last = token(t, lease)
			release(t, lease)
		}
		for _, s := range servers {
			must(t, client(t, s.Addr).FlushAll(t.Context()).Err())
		}
	}
}

func TestANodeRefusesLockersOfTheOtherMode(t *testing.T) {
	t.Parallel()
	for _, marked := range []bool{true, false} {
		cfg, servers, fences := bestEffort(t, 3, redisserver.Config{AppendOnly: redisserver.Always})
		cfg.BestEffort = marked
		l := started(t, cfg)
		release(t, acquire(t, l, "r"))
		before := fences.arms.Load()
		other := cfg
		other.BestEffort = !marked
		refused := func(what string) {
			t.Helper()
			stranger := locker(t, other)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			_, acquired := stranger.Acquire(ctx, "r") // returns at once
			initialised := patiently(ctx, func() error { return stranger.Init(ctx) })
			for how, err := range map[string]error{"acquire": acquired, "init": initialised, "ping": ping(t, stranger)} {
				if !errors.Is(err, lock.ErrMode) || ctx.Err() != nil {
					t.Errorf("best effort %v, %s: %s: %v", marked, what, how, err)
				}
			}
			_, err := admitBegin(t, stranger, "node-1")
			if !errors.Is(err, lock.ErrMode) {
				t.Errorf("best effort %v, %s: admission: %v", marked, what, err)
			}
		}
		refused("in use")
		must(t, l.Close())
		restart(t, servers[0], nil) // with its mark
		refused("lost")
		must(t, client(t, servers[0].Addr).FlushAll(t.Context()).Err())
		if _, err := admitBegin(t, locker(t, other), "node-1"); !errors.Is(err, lock.ErrMode) {
			t.Errorf("best effort %v: an empty node beside marked ones: %v", marked, err)
		}
		if fences.arms.Load() != before {
			t.Errorf("best effort %v: a fence was raised", marked)
		}
	}
}

// A Locker that is connected when the mode changes notices it with its next message.
func TestAGroupInUseChangesItsMode(t *testing.T) {
	t.Parallel()
	cfg, _, _ := bestEffort(t, 3, redisserver.Config{})
	cfg.MaxTTL, cfg.DefaultTTL, cfg.Epochs = 3*time.Second, 3*time.Second, &epochs{}
	strict := cfg
	strict.BestEffort = false
	before, after := started(t, strict), locker(t, cfg)
	held := acquire(t, before, "held")
	mark(t, before, true)
	if err := held.Extend(t.Context(), time.Second); err == nil {
		t.Error("a strict lease was extended on nodes that are best effort")
	}
	release(t, acquire(t, after, "r"))
	if _, err := tryAcquire(t, before, "r"); !errors.Is(err, lock.ErrMode) && !errors.Is(err, lock.ErrQuarantined) {
		t.Errorf("the strict Locker: %v", err)
	}

	last := acquire(t, after, "last")
	marked := time.Now()
	mark(t, before, false)
	if _, err := after.TryAcquire(t.Context(), "r"); err == nil {
		t.Error("best effort grants on nodes that are strict")
	}
	release(t, acquire(t, before, "last"))
	if passed := time.Since(marked); passed < cfg.MaxTTL {
		t.Errorf("strict nodes granted after %v; the quarantine is %v", passed, cfg.MaxTTL)
	}
	if _, err := last.Grant(); err == nil {
		t.Error("two hold at once on strict nodes")
	}
	for _, st := range status(t, before) {
		if st.BestEffort {
			t.Errorf("%+v", st)
		}
	}
}

func TestAModeIsMarkedOnNodesInUseOnly(t *testing.T) {
	t.Parallel()
	cfg, servers, _ := bestEffort(t, 3, redisserver.Config{})
	l := locker(t, cfg)
	if err := l.Mark(t.Context(), false); err == nil {
		t.Error("marked nodes that nobody admitted")
	}
	initialise(t, l) // like empty nodes
	mark(t, l, true)
	release(t, acquire(t, l, "r"))
	must(t, servers[2].Kill())
	if err := patiently(t.Context(), func() error { return l.Mark(t.Context(), false) }); err == nil {
		t.Error("no error names the node that was not marked")
	}
	if st := status(t, l); st[0].BestEffort || st[1].BestEffort || st[0].Admitted || st[1].Admitted {
		t.Errorf("the others are not marked: %+v", st)
	}
}

// A strict process that is started by mistake, while all data is lost, does not lock out the others.
func TestBestEffortWaitsForNoStrictQuarantine(t *testing.T) {
	t.Parallel()
	cfg, servers, _ := bestEffort(t, 1, redisserver.Config{})
	l := started(t, cfg)
	release(t, acquire(t, l, "r"))
	must(t, l.Close())
	must(t, client(t, servers[0].Addr).FlushAll(t.Context()).Err())
	strict := cfg
	strict.BestEffort = false
	_, err := admitBegin(t, locker(t, strict), "node-1")
	must(t, err)
	if left := status(t, stranger(t, strict))[0].Quarantine; left < time.Minute { // it admits nothing meanwhile
		t.Fatalf("a quarantine of %v: this test shows nothing", left)
	}
	release(t, acquire(t, locker(t, cfg), "r"))
}

// A node's durability under best effort, when two holders were possible, proves nothing once it is strict.
func TestAMarkedNodeIsNotDurable(t *testing.T) {
	t.Parallel()
	cfg, servers, _ := bestEffort(t, 1, redisserver.Config{AppendOnly: redisserver.Always})
	cfg.Nodes[0].Durable = true
	strict := cfg
	strict.BestEffort, strict.Armer = false, nil // does not admit automatically
	l := started(t, cfg)
	older := acquire(t, l, "r", lock.WithTTL(time.Hour))
	admin := client(t, servers[0].Addr)
	var newer *lock.Lease
	eventually(t, 20*time.Second, "it is durable", func() bool { // an admission asks for a second whether it is
		must(t, admin.FlushAll(t.Context()).Err())
		newer = acquire(t, l, "r")
		return admin.HExists(t.Context(), cfg.KeyPrefix+":h", "@durable").Val()
	})
	if _, err := older.Grant(); err != nil {
		t.Fatalf("one holds only, so this test shows nothing: %v", err)
	}
	release(t, newer)
	mark(t, l, false)
	quarantined(t, locker(t, strict))
}
