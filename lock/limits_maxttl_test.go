package lock_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/memredis"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/admin"
)

// limitedTo is a started group of n nodes in a bubble whose longest TTL is ttl, and its configuration without one.
func limitedTo(t *testing.T, n int, ttl time.Duration) (lock.Config, []*memredis.Node, *lock.Locker) {
	t.Helper()
	cfg, nodes := inMemory(t, n)
	cfg.MaxTTL, cfg.Epochs = ttl, &epochs{}
	l := started(t, cfg)
	cfg.MaxTTL = 0
	return cfg, nodes, l
}

// noticeTime is how long a change waits at least.
const noticeTime = 5 * time.Second

// all reports whether each node has the value.
func all(values []time.Duration, want time.Duration) bool {
	return !slices.ContainsFunc(values, func(is time.Duration) bool { return is != want })
}

func granted(t *testing.T, l *lock.Locker) (values []time.Duration) {
	t.Helper()
	for _, st := range admin.Of(l).Status(t.Context()) {
		must(t, st.Err)
		values = append(values, st.MaxTTL)
	}
	return values
}

// quarantine is how long the first node's quarantine lasts, which begins here.
func quarantine(t *testing.T, l *lock.Locker) time.Duration {
	t.Helper()
	begun, err := l.BeginAdmission(t.Context(), "node-1")
	must(t, err)
	if err := l.EndAdmission(t.Context(), begun); !errors.Is(err, lock.ErrQuarantined) {
		t.Errorf("admit: %v", err)
	}
	return admin.Of(l).Status(t.Context())[0].Quarantine
}

// Leases are refused that are longer than the nodes grant, with both values and the command.
func refusedAsLonger(t *testing.T, what string, err error, values ...string) {
	t.Helper()
	if !errors.Is(err, fence.ErrInvalid) || !strings.Contains(err.Error(), "fencegate nodes max-ttl") {
		t.Errorf("%s: %v", what, err)
		return
	}
	for _, value := range values {
		if !strings.Contains(err.Error(), value) {
			t.Errorf("%s: %q lacks %s", what, err, value)
		}
	}
}

func TestTheGroupsMaxTTLRules(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, _, _ := limitedTo(t, 3, 40*time.Second)
		l := locker(t, cfg)
		must(t, admin.Of(l).Init(t.Context())) // its own is the group's
		lease := acquire(t, l, "r", lock.WithTTL(40*time.Second))
		must(t, lease.Extend(t.Context(), 40*time.Second))
		_, acquired := l.TryAcquire(t.Context(), "other", lock.WithTTL(50*time.Second))
		for what, err := range map[string]error{"acquire": acquired, "extend": lease.Extend(t.Context(), 50*time.Second)} {
			refusedAsLonger(t, what, err, "50s", "40s")
		}
		release(t, lease)
		cfg.MaxTTL = 50 * time.Second
		refusedAsLonger(t, "init", admin.Of(locker(t, cfg)).Init(t.Context()), "50s", "40s")
		cfg.MaxTTL = 30 * time.Second
		l = locker(t, cfg)
		must(t, admin.Of(l).Init(t.Context()))
		if _, err := l.TryAcquire(t.Context(), "r", lock.WithTTL(31*time.Second)); !errors.Is(err, fence.ErrInvalid) || strings.Contains(err.Error(), "nodes max-ttl") {
			t.Errorf("over its own: %v", err)
		}
		if values := granted(t, l); !all(values, 40*time.Second) {
			t.Errorf("the nodes grant %v", values)
		}
	})
}

func TestTheFirstStartGivesTheDefaultMaxTTL(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := inMemory(t, 3)
		if values := granted(t, started(t, cfg)); !all(values, lock.DefaultMaxTTL) {
			t.Errorf("the nodes grant %v", values)
		}
	})
}

// Two processes start a group at the same time, with different values. The nodes that the one admits know of the longer
// one, which the other will grant.
func TestTwoFirstStartsLeaveNoQuarantineTooShort(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := inMemory(t, 3)
		cfg.MaxTTL = 50 * time.Second
		must(t, locker(t, cfg).BeginInit(t.Context()))
		cfg.MaxTTL = 40 * time.Second
		l := started(t, cfg)
		if longest := l.Longest(t.Context()); !all(longest, 50*time.Second) {
			t.Errorf("nodes may grant 50s, and a quarantine lasts %v", longest)
		}
	})
}

// The only node, or a majority, is lost. Whoever admits it has a shorter value of its own.
func TestAQuarantineLastsTheGroupsMaxTTL(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		want time.Duration
		is   func(t *testing.T) time.Duration
	}{
		"which another node keeps": {2 * time.Minute, func(t *testing.T) time.Duration {
			cfg, nodes, _ := limitedTo(t, 3, 2*time.Minute)
			nodes[0].Lose(t)
			nodes[1].Lose(t)
			return quarantine(t, locker(t, cfg))
		}},
		"which the node itself keeps": {2 * time.Minute, func(t *testing.T) time.Duration {
			cfg, nodes, _ := limitedTo(t, 1, 2*time.Minute)
			nodes[0].Restart(t)
			return quarantine(t, locker(t, cfg))
		}},
		"which this process saw": {3 * time.Minute, func(t *testing.T) time.Duration {
			cfg, nodes, l := limitedTo(t, 1, 2*time.Minute)
			must(t, admin.Of(l).SetMaxTTL(t.Context(), 3*time.Minute))
			other := locker(t, cfg)
			granted(t, other)
			flush(t, nodes[0])
			return quarantine(t, other)
		}},
		"which nobody knows, so its own counts": {4 * time.Minute, func(t *testing.T) time.Duration {
			cfg, nodes, _ := limitedTo(t, 1, 2*time.Minute)
			flush(t, nodes[0])
			cfg.MaxTTL = 4 * time.Minute
			return quarantine(t, locker(t, cfg))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				if is := c.is(t); is != c.want {
					t.Errorf("the quarantine lasts %v; want %v", is, c.want)
				}
			})
		})
	}
}

// A longer TTL is granted when every process that looks after the nodes knows of it, because they are what remembers
// it if all nodes are lost.
func TestALockerNoticesAChangeOfTheMaxTTL(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes, l := limitedTo(t, 1, lock.DefaultMaxTTL)
		holder := locker(t, cfg)
		cfg.Armer = &register{}
		other := locker(t, cfg)
		time.Sleep(time.Minute)
		const longer = 10 * time.Minute
		must(t, admin.Of(l).SetMaxTTL(t.Context(), longer))
		first := acquire(t, holder, "r", lock.WithTTL(longer))
		flush(t, nodes[0])
		second, err := other.Acquire(t.Context(), "r")
		must(t, err)
		lasted(t, "a second lease after the first", first.Deadline().Since(), longer-holder.Validity(lock.WithTTL(longer)), 5*time.Second)
		release(t, second)
		must(t, admin.Of(l).SetMaxTTL(t.Context(), longer)) // the process that is left saw no end of the first change
		time.Sleep(2 * time.Second)
		if is := other.SeenMaxTTL(); is != longer {
			t.Errorf("after two seconds it has seen %v", is)
		}
	})
}

// Each node has the higher value before any grants it, so a majority's loss in the middle is outlasted.
func TestALongerTTLIsGrantedOnceEveryNodeKnowsOfIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes, l := limitedTo(t, 3, 20*time.Second)
		end, err := l.BeginMaxTTL(t.Context(), 40*time.Second)
		must(t, err)
		_, refused := l.TryAcquire(t.Context(), "r", lock.WithTTL(30*time.Second))
		if values := granted(t, l); !all(values, 20*time.Second) || refused == nil {
			t.Errorf("before the end the nodes grant %v: %v", values, refused)
		}
		if values := l.Longest(t.Context()); !all(values, 40*time.Second) {
			t.Errorf("before the end a quarantine lasts %v", values)
		}
		must(t, end())
		release(t, acquire(t, locker(t, cfg), "r", lock.WithTTL(40*time.Second)))

		nodes[2].Freeze()
		if err := admin.Of(l).SetMaxTTL(t.Context(), time.Minute); err == nil || !strings.Contains(err.Error(), "node-3") {
			t.Errorf("with a frozen node: %v", err)
		}
		nodes[2].Thaw()
		if values := granted(t, l); !all(values, 40*time.Second) {
			t.Errorf("with a frozen node: the nodes grant %v", values)
		}
		forgets(t, nodes[0])
		if err := admin.Of(l).SetMaxTTL(t.Context(), time.Minute); !errors.Is(err, lock.ErrQuarantined) {
			t.Errorf("with a lost node: %v", err)
		}
		must(t, admin.Of(l).Admit(t.Context(), "node-1"))
		begun := time.Now()
		must(t, admin.Of(l).SetMaxTTL(t.Context(), time.Minute))
		lasted(t, "the change took", time.Since(begun), noticeTime, 0)
		if values := granted(t, l); !all(values, time.Minute) {
			t.Errorf("the nodes grant %v", values)
		}
	})
}

// A shorter TTL is in force at once, and shortens quarantines once every longer lease has ended.
func TestAShorterTTLShortensQuarantinesOnceLongerLeasesHaveEnded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, _, l := limitedTo(t, 3, lock.DefaultMaxTTL)
		begun := time.Now()
		done := make(chan error, 1)
		go func() { done <- admin.Of(l).SetMaxTTL(t.Context(), 10*time.Second) }()
		synctest.Wait()
		if values := granted(t, l); !all(values, 10*time.Second) {
			t.Errorf("the nodes grant %v", values)
		}
		time.Sleep(lock.DefaultMaxTTL)
		if values := l.Longest(t.Context()); !all(values, lock.DefaultMaxTTL) {
			t.Errorf("after %v a quarantine lasts %v", lock.DefaultMaxTTL, values)
		}
		must(t, <-done)
		margin := lock.DefaultMaxTTL - l.Validity(lock.WithTTL(lock.DefaultMaxTTL))
		lasted(t, "the change took", time.Since(begun), lock.DefaultMaxTTL+margin, 0)
		if values := l.Longest(t.Context()); !all(values, 10*time.Second) {
			t.Errorf("after the change a quarantine lasts %v", values)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := admin.Of(l).SetMaxTTL(ctx, 5*time.Second); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("interrupted: %v", err)
		}
		if values, longest := granted(t, l), l.Longest(t.Context()); !all(values, 5*time.Second) || !all(longest, 10*time.Second) {
			t.Errorf("interrupted: the nodes grant %v; a quarantine lasts %v", values, longest)
		}
	})
}

// Of two changes at a time the older one ends nowhere, so no node's quarantine is too short for what another grants.
func TestAChangeOfTheMaxTTLEndsNoOtherOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, _, l := limitedTo(t, 3, 20*time.Second)
		end, err := l.BeginMaxTTL(t.Context(), 40*time.Second)
		must(t, err)
		_, err = l.BeginMaxTTL(t.Context(), 10*time.Second)
		must(t, err)
		if err := end(); err == nil {
			t.Error("the older change ended")
		}
		if values := granted(t, l); !all(values, 10*time.Second) {
			t.Errorf("the nodes grant %v", values)
		}
		if values := l.Longest(t.Context()); !all(values, 40*time.Second) {
			t.Errorf("a quarantine lasts %v", values)
		}
		for _, ttl := range []time.Duration{0, -time.Second, 25 * time.Hour} {
			if err := admin.Of(l).SetMaxTTL(t.Context(), ttl); !errors.Is(err, fence.ErrInvalid) {
				t.Errorf("%v: %v", ttl, err)
			}
		}
	})
}

// A node that was away during a change gets the group's values when it is admitted, whatever it kept.
func TestALostNodeGetsTheGroupsMaxTTL(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, nodes, l := limitedTo(t, 3, 20*time.Second)
		must(t, admin.Of(l).SetMaxTTL(t.Context(), time.Minute))
		old := (20 * time.Second).Milliseconds()
		must(t, nodes[0].Client(t).HSet(t.Context(), hashKey, "@maxttl", old, "@longest", old).Err())
		must(t, nodes[0].Client(t).ScriptFlush(t.Context()).Err())
		must(t, admin.Of(l).Admit(t.Context(), "node-1"))
		if values := granted(t, l); !all(values, time.Minute) || !all(l.Longest(t.Context()), time.Minute) {
			t.Errorf("the nodes grant %v; a quarantine lasts %v", values, l.Longest(t.Context()))
		}
	})
}

// A node that is lost during a change, and admitted before its end, did not take part: no node grants the longer TTL.
// It knows of the change all the same, so a repetition succeeds.
func TestANodeThatIsAdmittedDuringAChangeOfTheMaxTTLStopsIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, nodes, l := limitedTo(t, 3, 20*time.Second)
		done := make(chan error, 1)
		go func() { done <- admin.Of(l).SetMaxTTL(t.Context(), time.Minute) }()
		synctest.Wait()
		forgets(t, nodes[0])
		must(t, admin.Of(l).Admit(t.Context(), "node-1"))
		if err := <-done; err == nil || !strings.Contains(err.Error(), "node-1") {
			t.Errorf("the change: %v", err)
		}
		if values, longest := granted(t, l), l.Longest(t.Context()); !all(values, 20*time.Second) || !all(longest, time.Minute) {
			t.Errorf("the nodes grant %v; a quarantine lasts %v", values, longest)
		}
		must(t, admin.Of(l).SetMaxTTL(t.Context(), time.Minute))
		if values := granted(t, l); !all(values, time.Minute) {
			t.Errorf("the nodes grant %v", values)
		}
	})
}
