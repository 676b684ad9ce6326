package lock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
)

func TestArmingRaisesTheFenceToTheTokenWithTheSealsHash(t *testing.T) {
	t.Parallel()
	cfg := shared(t, 3)
	var armed fence.Arming
	cfg.Armer = &register{before: func(a fence.Arming) error { armed = a; return nil }}
	l := started(t, cfg)
	lease := acquire(t, l, "r", lock.WithHolder("worker-a"))
	grant, err := lease.Grant()
	if err != nil {
		t.Fatal(err)
	}
	if armed.Resource != "r" || armed.Token != grant.Token || armed.Holder != "worker-a" ||
		string(armed.SealHash) != string(grant.Seal.Hash()) {
		t.Errorf("armed %+v for %v", armed, grant)
	}
	release(t, lease)
}

func TestAcquisitionGoesAboveARecordedTokenThatRedisForgot(t *testing.T) {
	t.Parallel()
	backends(t, []int{1, 3, 5}, func(t *testing.T, cfg lock.Config) {
		fences := &register{tokens: make(map[string]fence.Token)}
		cfg.Armer = fences
		l := started(t, cfg)
		resource := ""
		var lease *lock.Lease
		must(t, patiently(t.Context(), func() (err error) {
			resource += "r" // a late answer may have raised the counters of the one before
			fences.tokens[resource] = 1 << 40
			fences.arms.Store(0)
			lease, err = l.TryAcquire(t.Context(), resource)
			return err
		}))
		if got := token(t, lease); got != 1<<40+1 {
			t.Errorf("token %d; want %d", got, fence.Token(1<<40+1))
		}
		if n := fences.arms.Load(); n != 2 {
			t.Errorf("%d arms; want 2", n)
		}
		release(t, lease)
	})
}

func TestAFenceThatIsAlwaysAheadEndsTheAcquisitionAfterAFewTries(t *testing.T) {
	t.Parallel()
	cfg := shared(t, 3)
	fences := &register{before: func(a fence.Arming) error {
		return &fence.NotRaisedError{Resource: a.Resource, Offered: a.Token, Recorded: a.Token + 10}
	}}
	cfg.Armer = fences
	l := started(t, cfg)
	err := patiently(t.Context(), func() error {
		fences.arms.Store(0)
		_, err := l.TryAcquire(t.Context(), "r")
		return err
	})
	if !errors.Is(err, fence.ErrNotRaised) {
		t.Fatalf("got %v", err)
	}
	if n := fences.arms.Load(); n < 2 || n > 8 {
		t.Errorf("%d arms", n)
	}
	free(t, l, "r")
}

func TestAFailedArmGivesTheLockBack(t *testing.T) {
	t.Parallel()
	down := errors.New("database is away")
	for name, failure := range map[string]error{
		"not raised for another reason": down,
		"outcome unknown":               errors.Join(down, fence.ErrUnknown),
		"undrained":                     &fence.UndrainedError{Resource: "r", Token: 1, Detail: "prepared transaction"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := shared(t, 3)
			cfg.Armer = &register{before: func(fence.Arming) error { return failure }}
			l := started(t, cfg)
			_, err := tryAcquire(t, l, "r")
			if !errors.Is(err, failure) || errors.Is(failure, fence.ErrUnknown) != errors.Is(err, fence.ErrUnknown) {
				t.Fatalf("got %v", err)
			}
			free(t, l, "r")
		})
	}
}

func TestArmingThatOutlastsTheLeaseLosesIt(t *testing.T) {
	t.Parallel()
	cfg := shared(t, 3)
	cfg.Armer = slowArmer{}
	l := started(t, cfg)
	testenv.Paced(t, 300*time.Millisecond, func(ttl time.Duration) error {
		_, err := tryAcquire(t, l, "r", lock.WithTTL(ttl))
		if errors.Is(err, lock.ErrLost) || errors.Is(err, lock.ErrHeld) {
			return err // before it was armed, or not given back yet
		}
		if !errors.Is(err, fence.ErrUnknown) {
			t.Errorf("got %v", err)
		}
		return nil
	})
}

// slowArmer returns when its context ends.
type slowArmer struct{}

func (slowArmer) Arm(ctx context.Context, _ fence.Arming) error {
	<-ctx.Done()
	return ctx.Err()
}

// With an Armer, even the loss of all nodes at once, followed by Init, neither repeats a token nor lets one fall.
func TestArmedTokensRiseThroughTheLossOfEveryNode(t *testing.T) {
	t.Parallel()
	cfg, minis := embedded(t, 3)
	cfg.Armer, cfg.Epochs, cfg.MaxTTL = &register{}, &epochs{}, 5*time.Second
	l := started(t, cfg)
	var last fence.Token
	for range 5 {
		for range 3 {
			lease := acquire(t, l, "r")
			if got := token(t, lease); got <= last {
				t.Fatalf("token %d after %d", got, last)
			} else {
				last = got
			}
			release(t, lease)
		}
		for _, m := range minis {
			m.FlushAll()
		}
		// At once, or after the quarantine if the loss was noticed first.
		eventually(t, 20*time.Second, "nodes are admitted", func() bool { return l.Init(t.Context()) == nil })
	}
}

// free waits until the resource is free, because a failed acquisition is given back in the background.
func free(t *testing.T, l *lock.Locker, resource string) {
	t.Helper()
	eventually(t, 10*time.Second, "the lock is given back on all nodes", func() bool {
		ins, err := l.Inspect(t.Context(), resource)
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

// The fence is raised, but the lease has expired meanwhile, so the acquisition fails.
func TestALeaseThatRanOutWhileItWasArmedIsLost(t *testing.T) {
	t.Parallel()
	cfg := shared(t, 3)
	cfg.Armer = lateArmer{}
	l := started(t, cfg)
	for name, acquire := range map[string]func(opts ...lock.AcquireOption) error{
		"one": func(opts ...lock.AcquireOption) error { _, err := tryAcquire(t, l, "a", opts...); return err },
		"all": func(opts ...lock.AcquireOption) error {
			_, err := l.AcquireAll(t.Context(), []string{"b", "c"}, opts...)
			return err
		},
	} {
		if err := acquire(lock.WithTTL(500 * time.Millisecond)); !errors.Is(err, lock.ErrLost) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// lateArmer raises the fence after its deadline.
type lateArmer struct{}

func (lateArmer) Arm(ctx context.Context, _ fence.Arming) error {
	<-ctx.Done()
	return nil
}
