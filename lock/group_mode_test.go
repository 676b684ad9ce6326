package lock_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/memredis"
	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/admin"
)

// bestEffort is a configuration over n nodes in a bubble, and its fence.
func bestEffort(t *testing.T, n int) (lock.Config, []*memredis.Node, *register) {
	t.Helper()
	cfg, nodes := inMemory(t, n)
	fences := &register{}
	cfg.BestEffort, cfg.Armer, cfg.Epochs = true, fences, &epochs{}
	return cfg, nodes, fences
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
	for name, lose := range lossesInMemory {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg, nodes, fences := bestEffort(t, 1)
				l := started(t, cfg)
				older := acquire(t, l, "r", lock.WithTTL(lock.DefaultMaxTTL))
				lose(t, nodes[0])
				must(t, nodes[0].Client(t).Del(t.Context(), lockKey("r")).Err()) // some keep it
				begun := time.Now()
				newer := acquire(t, l, "r")
				lasted(t, "granted after", time.Since(begun), 0, time.Second)
				if _, err := older.Grant(); err != nil {
					t.Errorf("the older holder does not believe in its lease any more, so this test shows nothing: %v", err)
				}
				if token(t, newer) <= token(t, older) {
					t.Errorf("token %d after %d", token(t, newer), token(t, older))
				}
				if fences.fencedWrite("r", token(t, older)) || !fences.fencedWrite("r", token(t, newer)) {
					t.Error("the fence lets another write than the newest")
				}
				if st := admin.Of(l).Status(t.Context())[0]; !st.BestEffort || !st.Admitted {
					t.Errorf("%+v", st)
				}
			})
		})
	}
}

// Redis alone does not make tokens rise here: the fence is above the counters that the nodes lost.
func TestBestEffortTokensRiseThroughTheLossOfEveryNode(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes, _ := bestEffort(t, 3)
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
			for _, n := range nodes {
				flush(t, n)
			}
		}
	})
}

func TestANodeRefusesLockersOfTheOtherMode(t *testing.T) {
	t.Parallel()
	for _, marked := range []bool{true, false} {
		t.Run(fmt.Sprintf("best effort: %t", marked), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg, nodes, fences := bestEffort(t, 3)
				cfg.BestEffort = marked
				l := started(t, cfg)
				release(t, acquire(t, l, "r"))
				before := fences.arms.Load()
				other := cfg
				other.BestEffort = !marked
				refused := func(what string) {
					t.Helper()
					stranger := locker(t, other)
					begun := time.Now()
					_, acquired := stranger.Acquire(t.Context(), "r")
					lasted(t, what+": acquire", time.Since(begun), 0, 0)
					_, notReady := stranger.Ready(t.Context())
					for how, err := range map[string]error{"acquire": acquired, "init": admin.Of(stranger).Init(t.Context()), "ready": notReady} {
						if !errors.Is(err, lock.ErrMode) {
							t.Errorf("%s: %s: %v", what, how, err)
						}
					}
					if _, err := stranger.BeginAdmission(t.Context(), "node-1"); !errors.Is(err, lock.ErrMode) {
						t.Errorf("%s: admission: %v", what, err)
					}
				}
				refused("in use")
				must(t, l.Close())
				nodes[0].Restart(t) // with its mark
				refused("lost")
				flush(t, nodes[0])
				if _, err := locker(t, other).BeginAdmission(t.Context(), "node-1"); !errors.Is(err, lock.ErrMode) {
					t.Errorf("an empty node beside marked ones: %v", err)
				}
				if fences.arms.Load() != before {
					t.Error("a fence was raised")
				}
			})
		})
	}
}

// A Locker that is connected when the mode changes notices it with its next message.
func TestAGroupInUseChangesItsMode(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, _, _ := bestEffort(t, 3)
		strict := cfg
		strict.BestEffort = false
		before, after := started(t, strict), locker(t, cfg)
		held := acquire(t, before, "held")
		must(t, admin.Of(before).Mark(t.Context(), true))
		if err := held.Extend(t.Context(), time.Second); err == nil {
			t.Error("a strict lease was extended on nodes that are best effort")
		}
		release(t, acquire(t, after, "r"))
		if _, err := before.TryAcquire(t.Context(), "r"); !errors.Is(err, lock.ErrMode) && !errors.Is(err, lock.ErrQuarantined) {
			t.Errorf("the strict Locker: %v", err)
		}

		last := acquire(t, after, "last", lock.WithTTL(lock.DefaultMaxTTL))
		marked := time.Now()
		must(t, admin.Of(before).Mark(t.Context(), false))
		if _, err := after.TryAcquire(t.Context(), "r"); err == nil {
			t.Error("best effort grants on nodes that are strict")
		}
		next, err := before.Acquire(t.Context(), "last")
		must(t, err)
		lasted(t, "strict nodes granted after", time.Since(marked), lock.DefaultMaxTTL, 3*time.Second)
		if _, err := last.Grant(); err == nil {
			t.Error("two hold at once on strict nodes")
		}
		release(t, next)
		for _, st := range admin.Of(before).Status(t.Context()) {
			if st.BestEffort {
				t.Errorf("%+v", st)
			}
		}
	})
}

func TestAModeIsMarkedOnNodesInUseOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes, _ := bestEffort(t, 3)
		l := locker(t, cfg)
		if err := admin.Of(l).Mark(t.Context(), false); err == nil {
			t.Error("marked nodes that nobody admitted")
		}
		must(t, admin.Of(l).Init(t.Context())) // like empty nodes
		must(t, admin.Of(l).Mark(t.Context(), true))
		release(t, acquire(t, l, "r"))
		nodes[2].Stop()
		if err := admin.Of(l).Mark(t.Context(), false); err == nil {
			t.Error("no error names the node that was not marked")
		}
		if st := admin.Of(l).Status(t.Context()); st[0].BestEffort || st[1].BestEffort || st[0].Admitted || st[1].Admitted {
			t.Errorf("the others are not marked: %+v", st)
		}
	})
}

// A strict process that is started by mistake, while all data is lost, does not lock out the others.
func TestBestEffortWaitsForNoStrictQuarantine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes, _ := bestEffort(t, 1)
		l := started(t, cfg)
		release(t, acquire(t, l, "r"))
		must(t, l.Close())
		flush(t, nodes[0])
		strict := cfg
		strict.BestEffort = false
		_, err := locker(t, strict).BeginAdmission(t.Context(), "node-1")
		must(t, err)
		if left := admin.Of(stranger(t, strict)).Status(t.Context())[0].Quarantine; left != lock.DefaultMaxTTL { // it admits nothing until then
			t.Fatalf("a quarantine of %v: this test shows nothing", left)
		}
		begun := time.Now()
		release(t, acquire(t, locker(t, cfg), "r"))
		lasted(t, "granted after", time.Since(begun), 0, time.Second)
	})
}

// A node's durability under best effort, when two holders were possible, proves nothing once it is strict.
func TestAMarkedNodeIsNotDurable(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 1, redisserver.Config{AppendOnly: redisserver.Always})
	cfg.BestEffort, cfg.Armer, cfg.Epochs, cfg.Nodes[0].Durable = true, &register{}, &epochs{}, true
	strict := cfg
	strict.BestEffort, strict.Armer = false, nil // does not admit automatically
	l := started(t, cfg)
	older := acquire(t, l, "r", lock.WithTTL(maxTTL))
	operator := client(t, servers[0].Addr)
	must(t, operator.FlushAll(t.Context()).Err())
	newer := acquire(t, l, "r")
	if !operator.HExists(t.Context(), prefixOf(cfg)+":h", "@durable").Val() {
		t.Fatal("it is not durable: this test shows nothing")
	}
	if _, err := older.Grant(); err != nil {
		t.Fatalf("one holds only, so this test shows nothing: %v", err)
	}
	release(t, newer)
	must(t, admin.Of(l).Mark(t.Context(), false))
	quarantined(t, locker(t, strict))
}
