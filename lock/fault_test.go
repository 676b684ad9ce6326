package lock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
)

// A holder relies on its last confirmed deadline. An extension to a shorter TTL that arrives late, or whose answer
// does, must not end its lock before that.
func TestAShorterExtensionShortensNoLock(t *testing.T) {
	t.Parallel()
	backends(t, []int{1, 3}, func(t *testing.T, cfg lock.Config) {
		l := started(t, cfg)
		lease := acquire(t, l, "r", lock.WithTTL(lock.DefaultMaxTTL))
		testenv.Paced(t, 100*time.Millisecond, func(short time.Duration) error {
			valid, err := locker(t, cfg).Extend(t.Context(), lease.Ref(), short)
			if err == nil && valid > short {
				t.Errorf("valid for %v; want at most %v", valid, short)
			}
			return err // the TTL may have run out
		})
		var ins leasing.Inspection
		must(t, patiently(t.Context(), func() (err error) { ins, err = l.Inspect(t.Context(), "r"); return err }))
		if !ins.Locked || ins.TTL < lock.DefaultMaxTTL/2 {
			t.Errorf("%+v", ins)
		}
		token(t, lease)
		release(t, lease)
	})
}

// An admission can't be completed twice: after a restart the node would come back with old counters and without a
// quarantine.
func TestAnAdmissionIsVoidOnceItsNodeHasRestarted(t *testing.T) {
	t.Parallel()
	for _, ended := range []bool{false, true} {
		cfg, servers := own(t, 1, redisserver.Config{AppendOnly: redisserver.Always})
		cfg.Epochs = &epochs{}
		l := started(t, cfg)
		restart(t, servers[0], nil)
		begun, err := admitBegin(t, l, "node-1")
		must(t, err)
		must(t, l.EndQuarantine(t.Context(), "node-1"))
		if ended {
			must(t, admitEnd(t, l, begun))
		}
		restart(t, servers[0], nil)
		if err := admitEnd(t, l, begun); err == nil {
			t.Errorf("ended before: %v: admitted after a restart", ended)
		}
		if st := status(t, l)[0]; st.Err != nil || st.Admitted {
			t.Errorf("ended before: %v: %+v", ended, st)
		}
		admit(t, l, "node-1")
		release(t, acquire(t, l, "r"))
	}
}

// A caller's Armer may panic while the process continues.
func TestAPanicOfTheArmerLeavesNoLock(t *testing.T) {
	t.Parallel()
	for name, acquire := range map[string]func(*lock.Locker) error{
		"one": func(l *lock.Locker) error { _, err := tryAcquire(t, l, "a"); return err },
		"all": func(l *lock.Locker) error {
			_, err := l.AcquireAll(t.Context(), []string{"a", "b"})
			return err
		},
	} {
		cfg := shared(t, 3)
		var broken atomic.Bool
		cfg.Armer = &register{before: func(fence.Arming) error {
			if broken.Load() {
				panic("broken armer")
			}
			return nil
		}}
		l := started(t, cfg)
		broken.Store(true)
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			_ = acquire(l)
		}()
		broken.Store(false)
		free(t, l, "a")
		free(t, l, "b")
	}
}

// hook is a Metrics that lets a test act during an operation.
type hook struct {
	told
	failed func(operation, cause string)
}

func (h *hook) Failed(operation, cause string) { h.failed(operation, cause) }

// The last lock is granted at the moment at which another one turns out to be lost.
func TestAcquireAllFailsWhenOneWasLostMeanwhile(t *testing.T) {
	t.Parallel()
	testenv.Paced(t, 6*time.Second, func(ttl time.Duration) error {
		cfg := shared(t, 3)
		other := started(t, cfg)
		held := acquire(t, other, "z", lock.WithTTL(4*time.Minute))
		taken := make(chan struct{})
		cfg.Tracer = steps(func(step lock.Step, err error) {
			if step.Name == "attempt" && step.Resource == "z" && err == nil {
				close(taken)
			}
		})
		h := &hook{}
		h.failed = func(operation, cause string) {
			if operation == "extend" && cause == "lost" {
				check(t, held.Release(t.Context()))
				select {
				case <-taken:
				case <-time.After(20 * time.Second):
					t.Error("the last one is not acquired")
				}
			}
		}
		cfg.Metrics = h
		l := locker(t, cfg)
		done := make(chan error, 1)
		go func() {
			leases, err := l.AcquireAll(t.Context(), []string{"a", "z"}, lock.WithTTL(ttl))
			for _, lease := range leases {
				lease.ReleaseAsync()
			}
			done <- err
		}()
		eventually(t, 20*time.Second, "it has a, and waits for z", func() bool { return l.Waiting("z") == 1 || len(done) > 0 })
		for _, n := range cfg.Nodes {
			dropAnyLock(t, n.Addr, cfg.KeyPrefix, "a") // a quorum sufficed
		}
		err := <-done
		if !errors.Is(err, lock.ErrLost) {
			t.Errorf("got %v", err)
		}
		select {
		case <-taken:
		default:
			held.ReleaseAsync()
			return fmt.Errorf("its TTL ended before it turned out to be lost: %w", err)
		}
		free(t, other, "z")
		return nil
	})
}

func TestAcquireAllTakesNothingWhereOneNameIsBad(t *testing.T) {
	t.Parallel()
	l := started(t, shared(t, 1))
	held := acquire(t, l, "a")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := l.AcquireAll(ctx, []string{"a", "b*"}); !errors.Is(err, fence.ErrInvalid) || errors.Is(err, lock.ErrHeld) {
		t.Errorf("got %v", err)
	}
	release(t, held)
}

// A sweep near the end of an epoch leaves no counters, and a base at the beginning of the next epoch. The group still
// counts as used.
func TestInitLeavesTheEmptyNodeOfAGroupThatWasSweptIntoANewEpochAlone(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 3, redisserver.Config{})
	l := started(t, cfg)
	use(t, cfg, "r", lastOfEpoch-1)
	lease := acquire(t, l, "r", lock.WithTTL(time.Minute))
	_, err := sweep(t, l)
	must(t, err)
	must(t, client(t, servers[0].Addr).FlushAll(t.Context()).Err())
	initialise(t, locker(t, cfg))
	if l.Status(t.Context())[0].Admitted {
		t.Error("admitted without quarantine")
	}
	lease.ReleaseAsync() // the emptied node may have been needed for its quorum
}

// steps is a Tracer that is called at the end of steps.
type steps func(step lock.Step, err error)

func (s steps) Begin(ctx context.Context, step lock.Step) (context.Context, func(error)) {
	return ctx, func(err error) { s(step, err) }
}

// order is a Tracer that records the order in which nodes are asked.
type order struct {
	mu    sync.Mutex
	nodes []string
}

func (o *order) Begin(ctx context.Context, step lock.Step) (context.Context, func(error)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if step.Node != "" {
		o.nodes = append(o.nodes, step.Node)
	}
	return ctx, func(error) {}
}

func (o *order) take() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	nodes := o.nodes
	o.nodes = nil
	return nodes
}

// A release at the resource's home wakes a waiter that asks all nodes at once, and it should find them free.
func TestAReleaseReachesTheHomeLast(t *testing.T) {
	t.Parallel()
	cfg := shared(t, 5)
	var asked order
	cfg.Tracer = &asked
	l := started(t, cfg)
	for _, resource := range []string{"a", "b", "c", "d"} {
		lease := acquire(t, l, resource)
		asked.take()
		release(t, lease)
		nodes := asked.take()
		if want := cfg.Nodes[l.Home(resource)].Name; len(nodes) != 5 || slices.Index(nodes, want) != 4 {
			t.Errorf("%s: %v; its home is %s", resource, nodes, want)
		}
	}
}
