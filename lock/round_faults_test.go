package lock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/memredis"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/admin"
)

// A holder relies on its last confirmed deadline. An extension to a shorter TTL that arrives late, or whose answer
// does, must not end its lock before that.
func TestAShorterExtensionShortensNoLock(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 3} {
		t.Run(fmt.Sprintf("%d nodes", n), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg, _ := inMemory(t, n)
				l := started(t, cfg)
				lease := acquire(t, l, "r", lock.WithTTL(lock.DefaultMaxTTL))
				const short = time.Second
				valid, err := locker(t, cfg).Extend(t.Context(), lease.Ref(), short)
				must(t, err)
				if want := l.Validity(lock.WithTTL(short)); valid.Left() != want {
					t.Errorf("valid for %v; want %v", valid.Left(), want)
				}
				time.Sleep(lease.Deadline().Left() - time.Nanosecond)
				if _, err := l.TryAcquire(t.Context(), "r"); !errors.Is(err, lock.ErrHeld) {
					t.Errorf("at the end of the lease: %v", err)
				}
				if _, err := lease.Grant(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// An admission can't be completed twice: after a restart the node would come back with old counters and without a
// quarantine.
func TestAnAdmissionIsVoidOnceItsNodeHasRestarted(t *testing.T) {
	t.Parallel()
	for _, ended := range []bool{false, true} {
		t.Run(fmt.Sprintf("ended before: %t", ended), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg, nodes := inMemory(t, 1)
				cfg.Epochs = &epochs{}
				l := started(t, cfg)
				restarted(t, l, nodes[0])
				begun, err := l.BeginAdmission(t.Context(), "node-1")
				must(t, err)
				time.Sleep(lock.DefaultMaxTTL) // its quarantine
				if ended {
					must(t, l.EndAdmission(t.Context(), begun))
				}
				restarted(t, l, nodes[0])
				if err := l.EndAdmission(t.Context(), begun); err == nil {
					t.Error("admitted after a restart")
				}
				if st := admin.Of(l).Status(t.Context())[0]; st.Err != nil || st.Admitted {
					t.Errorf("%+v", st)
				}
				must(t, admin.Of(l).Admit(t.Context(), "node-1"))
				release(t, acquire(t, l, "r"))
			})
		})
	}
}

// restarted restarts a node, which keeps its data, and has a Locker find its connection ended.
func restarted(t *testing.T, l *lock.Locker, n *memredis.Node) {
	t.Helper()
	n.Restart(t)
	_ = admin.Of(l).Status(t.Context())
}

// A caller's Armer may panic while the process continues.
func TestAPanicOfTheArmerLeavesNoLock(t *testing.T) {
	t.Parallel()
	for name, acquire := range map[string]func(context.Context, *lock.Locker) error{
		"one": func(ctx context.Context, l *lock.Locker) error { _, err := l.TryAcquire(ctx, "a"); return err },
		"all": func(ctx context.Context, l *lock.Locker) error {
			_, err := l.AcquireAll(ctx, []string{"a", "b"})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg, _ := inMemory(t, 3)
				cfg.Armer = &register{before: func(fence.Arming) error { panic("broken armer") }}
				l := started(t, cfg)
				func() {
					defer func() {
						if recover() == nil {
							t.Error("no panic")
						}
					}()
					_ = acquire(t.Context(), l)
				}()
				synctest.Wait()
				freed(t, l, "a")
				freed(t, l, "b")
			})
		})
	}
}

// hook is a Metrics that lets a test act during an operation.
type hook struct {
	recorder
	failed func(operation, cause string)
}

func (h *hook) Failed(operation, cause string) { h.failed(operation, cause) }

// The last lock is granted at the moment at which another one turns out to be lost.
func TestAcquireAllFailsWhenOneWasLostMeanwhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		other := started(t, cfg)
		held := acquire(t, other, "z", lock.WithTTL(lock.DefaultMaxTTL))
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
				<-taken
			}
		}
		cfg.Metrics = h
		l := locker(t, cfg)
		done := make(chan error, 1)
		go func() {
			_, err := l.AcquireAll(t.Context(), []string{"a", "z"})
			done <- err
		}()
		synctest.Wait()
		if l.Waiting("z") != 1 {
			t.Fatal("it does not wait for z")
		}
		for _, n := range nodes {
			must(t, n.Client(t).Del(t.Context(), lock.DefaultKeyPrefix+":lock:a").Err())
		}
		if err := <-done; !errors.Is(err, lock.ErrLost) {
			t.Errorf("got %v", err)
		}
		select {
		case <-taken:
		default:
			t.Error("z was not acquired")
		}
		synctest.Wait()
		freed(t, other, "z")
	})
}

func TestAcquireAllTakesNothingWhereOneNameIsBad(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := inMemory(t, 1)
		l := started(t, cfg)
		held := acquire(t, l, "a")
		begun := time.Now()
		if _, err := l.AcquireAll(t.Context(), []string{"a", "b*"}); !errors.Is(err, fence.ErrInvalid) || errors.Is(err, lock.ErrHeld) {
			t.Errorf("got %v", err)
		}
		if waited := time.Since(begun); waited != 0 {
			t.Errorf("it waited for %v", waited)
		}
		release(t, held)
	})
}

// A sweep near the end of an epoch leaves no counters, and a base at the beginning of the next epoch. The group still
// counts as used.
func TestInitLeavesTheEmptyNodeOfAGroupThatWasSweptIntoANewEpochAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		l := started(t, cfg)
		for _, n := range nodes {
			must(t, n.Client(t).HSet(t.Context(), lock.DefaultKeyPrefix+":h", "c:r", int64(lastOfEpoch-1)).Err())
		}
		acquire(t, l, "r")
		synctest.Wait()
		_, err := admin.Of(l).Sweep(t.Context())
		must(t, err)
		must(t, nodes[0].Client(t).FlushAll(t.Context()).Err())
		must(t, admin.Of(locker(t, cfg)).Init(t.Context()))
		if admin.Of(l).Status(t.Context())[0].Admitted {
			t.Error("admitted without quarantine")
		}
	})
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
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := inMemory(t, 5)
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
	})
}
