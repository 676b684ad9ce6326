package lock_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/memredis"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/admin"
)

func TestAcquisitionGoesAboveARecordedTokenThatRedisForgot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := inMemory(t, 3)
		fences := &register{}
		cfg.Armer = fences
		l := started(t, cfg)
		fences.tokens = map[string]fence.Token{"r": 1 << 40}
		if got := token(t, leased(t, l, "r")); got != 1<<40+1 {
			t.Errorf("token %d; want %d", got, fence.Token(1<<40+1))
		}
		if n := fences.arms.Load(); n != 2 {
			t.Errorf("%d arms; want 2", n)
		}
	})
}

func TestAFenceThatIsAlwaysAheadEndsTheAcquisitionAfterAFewTries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := inMemory(t, 3)
		fences := &register{before: func(a fence.Arming) error {
			return &fence.NotRaisedError{Resource: a.Resource, Offered: a.Token, Recorded: a.Token + 10}
		}}
		cfg.Armer = fences
		l := started(t, cfg)
		_, err := l.TryAcquire(t.Context(), "r")
		if n := fences.arms.Load(); !errors.Is(err, fence.ErrNotRaised) || n != 4 {
			t.Errorf("%d arms: %v", n, err)
		}
		unlocked(t, l, "r")
	})
}

func TestOnlyAnArmerSaysThatTheOutcomeIsUnknown(t *testing.T) {
	t.Parallel()
	down := errors.New("database is away")
	for name, failure := range map[string]error{
		"not raised for another reason": down,
		"outcome unknown":               errors.Join(down, fence.ErrUnknown),
		"undrained":                     &fence.UndrainedError{Resource: "r", Token: 1, Detail: "prepared transaction"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg, _ := inMemory(t, 3)
				cfg.Armer = &register{before: func(fence.Arming) error { return failure }}
				l := started(t, cfg)
				_, err := l.TryAcquire(t.Context(), "r")
				if !errors.Is(err, failure) || errors.Is(failure, fence.ErrUnknown) != errors.Is(err, fence.ErrUnknown) {
					t.Errorf("got %v", err)
				}
				unlocked(t, l, "r")
			})
		})
	}
}

func TestArmingThatOutlastsTheLeaseLosesIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := inMemory(t, 3)
		cfg.Armer = slowArmer{}
		l := started(t, cfg)
		begun := time.Now()
		_, err := l.TryAcquire(t.Context(), "r")
		if took := time.Since(begun); !errors.Is(err, fence.ErrUnknown) || took != l.Validity() {
			t.Errorf("after %v: %v", took, err)
		}
		unlocked(t, l, "r")
	})
}

// slowArmer returns when its context ends.
type slowArmer struct{ anyFence }

func (slowArmer) Arm(ctx context.Context, _ ...fence.Arming) error {
	<-ctx.Done()
	return ctx.Err()
}

// unsaid is a fence that does not say that it was raised.
type unsaid struct{ register }

func (*unsaid) Raised(context.Context) (bool, error) { return false, nil }

// With an Armer, even the loss of all nodes at once neither repeats a token nor lets one fall: not after Init, which
// takes servers that were restarted empty for new ones, and not after the quarantine of nodes that were emptied.
func TestArmedTokensRiseThroughTheLossOfEveryNode(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(*testing.T, lock.Config, []*memredis.Node){
		"restarted empty": func(t *testing.T, cfg lock.Config, nodes []*memredis.Node) {
			for _, n := range nodes {
				n.Lose(t)
			}
			must(t, admin.Of(locker(t, cfg)).Init(t.Context()))
		},
		"flushed": func(t *testing.T, _ lock.Config, nodes []*memredis.Node) {
			for _, n := range nodes {
				must(t, n.Client(t).FlushAll(t.Context()).Err())
			}
			time.Sleep(lock.DefaultMaxTTL + 5*time.Second)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg, nodes := inMemory(t, 3)
				cfg.Armer, cfg.Epochs = &unsaid{}, &epochs{}
				l := started(t, cfg)
				time.Sleep(5 * time.Second) // it has looked at its nodes
				var last fence.Token
				for range 4 {
					for range 3 {
						lease := leased(t, l, "r")
						if got := token(t, lease); got <= last {
							t.Fatalf("token %d after %d", got, last)
						} else {
							last = got
						}
						must(t, lease.Release(t.Context()))
					}
					lose(t, cfg, nodes)
				}
			})
		})
	}
}

// free waits until the resource is free, because a failed acquisition is given back in the background.
func free(t *testing.T, l *lock.Locker, resource string) {
	t.Helper()
	eventually(t, 10*time.Second, "the lock is given back on all nodes", func() bool {
		ins, err := leasing.One(l.Inspect(t.Context(), resource))
		if err != nil && !errors.Is(err, lock.ErrNodeTimeout) {
			t.Fatal(err)
		}
		for _, n := range ins.Members {
			if n.Locked || n.Err != nil {
				return false
			}
		}
		return true
	})
}

func client(t *testing.T, addr string) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: patient})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// The fence is raised, but the lease expired while it was raised, so the acquisition fails.
func TestALeaseThatRanOutWhileItWasArmedIsLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := inMemory(t, 3)
		cfg.Armer = lateArmer{}
		l := started(t, cfg)
		for name, acquire := range map[string]func() error{
			"one": func() error { _, err := l.TryAcquire(t.Context(), "a"); return err },
			"all": func() error { _, err := l.AcquireAll(t.Context(), []string{"b", "c"}); return err },
		} {
			if err := acquire(); !errors.Is(err, lock.ErrLost) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// lateArmer raises the fence after its deadline.
type lateArmer struct{ anyFence }

func (lateArmer) Arm(ctx context.Context, _ ...fence.Arming) error {
	<-ctx.Done()
	return nil
}
