package lock_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/lock"
)

// limitedTo is a started group of n nodes of this test whose longest TTL is ttl, and its configuration without one.
func limitedTo(t *testing.T, n int, ttl time.Duration, server redisserver.Config) (lock.Config, []*redisserver.Server, *lock.Locker) {
	t.Helper()
	cfg, servers := own(t, n, server)
	cfg.MaxTTL, cfg.Epochs = ttl, &epochs{}
	l := started(t, cfg)
	cfg.MaxTTL, cfg.DefaultTTL = 0, time.Second
	return cfg, servers, l
}

// all reports whether each node has the value.
func all(values []time.Duration, want time.Duration) bool {
	return !slices.ContainsFunc(values, func(is time.Duration) bool { return is != want })
}

func granted(t *testing.T, l *lock.Locker) (values []time.Duration) {
	t.Helper()
	for _, st := range status(t, l) {
		values = append(values, st.MaxTTL)
	}
	return values
}

// lost is how long the first node's quarantine lasts, which begins here.
func quarantine(t *testing.T, l *lock.Locker) time.Duration {
	t.Helper()
	begun, err := admitBegin(t, l, "node-1")
	must(t, err)
	if err := admitEnd(t, l, begun); !errors.Is(err, lock.ErrQuarantined) {
		t.Errorf("admit: %v", err)
	}
	return status(t, l)[0].Quarantine
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
	for _, n := range []int{1, 3} {
		cfg, _, _ := limitedTo(t, n, 40*time.Second, redisserver.Config{})
		l := locker(t, cfg)
		initialise(t, l) // its own is the group's
		lease := acquire(t, l, "r", lock.WithTTL(40*time.Second))
		must(t, lease.Extend(t.Context(), 40*time.Second))
		_, acquired := tryAcquire(t, l, "other", lock.WithTTL(50*time.Second))
		for what, err := range map[string]error{"acquire": acquired, "extend": lease.Extend(t.Context(), 50*time.Second)} {
			refusedAsLonger(t, what, err, "50s", "40s")
		}
		release(t, lease)
		cfg.MaxTTL = 50 * time.Second
		refusedAsLonger(t, "init", locker(t, cfg).Init(t.Context()), "50s", "40s")
		cfg.MaxTTL = 30 * time.Second
		l = locker(t, cfg)
		initialise(t, l)
		if _, err := tryAcquire(t, l, "r", lock.WithTTL(31*time.Second)); !errors.Is(err, fence.ErrInvalid) || strings.Contains(err.Error(), "nodes max-ttl") {
			t.Errorf("over its own: %v", err)
		}
		if values := granted(t, l); !all(values, 40*time.Second) {
			t.Errorf("the nodes grant %v", values)
		}
	}
}

func TestTheFirstStartGivesTheDefaultMaxTTL(t *testing.T) {
	t.Parallel()
	cfg := shared(t, 3)
	cfg.MaxTTL = 0
	if values := granted(t, started(t, cfg)); !all(values, lock.DefaultMaxTTL) {
		t.Errorf("the nodes grant %v", values)
	}
}

// Two processes start a group at the same time, with different values. The nodes that the one admits know of the longer
// one, which the other will grant.
func TestTwoFirstStartsLeaveNoQuarantineTooShort(t *testing.T) {
	t.Parallel()
	cfg, _ := own(t, 3, redisserver.Config{})
	cfg.MaxTTL = 50 * time.Second
	must(t, patiently(t.Context(), func() error { return locker(t, cfg).BeginInit(t.Context()) }))
	cfg.MaxTTL = 40 * time.Second
	l := started(t, cfg)
	if longest := l.Longest(t.Context()); !all(longest, 50*time.Second) {
		t.Errorf("nodes may grant 50s, and a quarantine lasts %v", longest)
	}
}

// The only node, or a majority, is lost. Whoever admits it has a shorter value of its own.
func TestAQuarantineLastsTheGroupsMaxTTL(t *testing.T) {
	t.Parallel()
	t.Run("which another node keeps", func(t *testing.T) {
		t.Parallel()
		cfg, servers, _ := limitedTo(t, 3, 2*time.Minute, redisserver.Config{})
		restart(t, servers[0], nil)
		restart(t, servers[1], nil)
		if left := quarantine(t, locker(t, cfg)); left < 100*time.Second || left > 2*time.Minute {
			t.Errorf("the quarantine lasts %v", left)
		}
	})
	t.Run("which the node itself keeps", func(t *testing.T) {
		t.Parallel()
		cfg, servers, _ := limitedTo(t, 1, 2*time.Minute, redisserver.Config{AppendOnly: redisserver.Always})
		restart(t, servers[0], nil)
		if left := quarantine(t, locker(t, cfg)); left < 100*time.Second {
			t.Errorf("the quarantine lasts %v", left)
		}
	})
	t.Run("which this process saw", func(t *testing.T) {
		t.Parallel()
		cfg, servers, l := limitedTo(t, 1, 2*time.Minute, redisserver.Config{})
		must(t, l.SetMaxTTL(t.Context(), 3*time.Minute))
		other := locker(t, cfg)
		granted(t, other)
		must(t, client(t, servers[0].Addr).FlushAll(t.Context()).Err())
		if left := quarantine(t, other); left < 160*time.Second {
			t.Errorf("the quarantine lasts %v", left)
		}
	})
	t.Run("which nobody knows, so its own counts", func(t *testing.T) {
		t.Parallel()
		cfg, servers, _ := limitedTo(t, 1, 2*time.Minute, redisserver.Config{})
		must(t, client(t, servers[0].Addr).FlushAll(t.Context()).Err())
		cfg.MaxTTL = 4 * time.Minute
		if left := quarantine(t, locker(t, cfg)); left < 220*time.Second {
			t.Errorf("the quarantine lasts %v", left)
		}
	})
}

// A process that looks after the nodes notices a change within seconds.
func TestALockerNoticesAChangeOfTheMaxTTL(t *testing.T) {
	t.Parallel()
	cfg, servers, l := limitedTo(t, 1, 2*time.Second, redisserver.Config{})
	cfg.Armer = &register{}
	other := locker(t, cfg)
	must(t, l.SetMaxTTL(t.Context(), 20*time.Second))
	eventually(t, 20*time.Second, "it is seen", func() bool { return other.SeenMaxTTL() == 20*time.Second })
	first := acquire(t, other, "r", lock.WithTTL(5*time.Second))
	must(t, client(t, servers[0].Addr).FlushAll(t.Context()).Err())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	second, err := other.Acquire(ctx, "r")
	must(t, err)
	if left := time.Until(first.Deadline()); left > 0 {
		t.Errorf("a second lease %v before the first was over", left)
	}
	release(t, second)
}

// Each node has the higher value before any grants it, so a majority's loss in the middle is outlasted.
func TestALongerTTLIsGrantedOnceEveryNodeKnowsOfIt(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 3} {
		cfg, servers, l := limitedTo(t, n, 20*time.Second, redisserver.Config{})
		end, err := l.BeginMaxTTL(t.Context(), 40*time.Second)
		must(t, err)
		_, refused := tryAcquire(t, l, "r", lock.WithTTL(30*time.Second))
		if values := granted(t, l); !all(values, 20*time.Second) || refused == nil {
			t.Errorf("before the end the nodes grant %v: %v", values, refused)
		}
		if values := l.Longest(t.Context()); !all(values, 40*time.Second) {
			t.Errorf("before the end a quarantine lasts %v", values)
		}
		must(t, end())
		release(t, acquire(t, locker(t, cfg), "r", lock.WithTTL(40*time.Second)))
		if n == 1 {
			continue
		}
		must(t, servers[2].Freeze())
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		if err := l.SetMaxTTL(ctx, time.Minute); err == nil || !strings.Contains(err.Error(), "node-3") {
			t.Errorf("with a frozen node: %v", err)
		}
		cancel()
		must(t, servers[2].Thaw())
		if values := granted(t, l); !all(values, 40*time.Second) {
			t.Errorf("with a frozen node: the nodes grant %v", values)
		}
		restart(t, servers[0], nil)
		if err := l.SetMaxTTL(t.Context(), time.Minute); !errors.Is(err, lock.ErrQuarantined) {
			t.Errorf("with a lost node: %v", err)
		}
		must(t, l.Admit(t.Context(), "node-1"))
		must(t, patiently(t.Context(), func() error { return l.SetMaxTTL(t.Context(), time.Minute) }))
		if values := granted(t, l); !all(values, time.Minute) {
			t.Errorf("the nodes grant %v", values)
		}
	}
}

// A shorter TTL is in force at once, and shortens quarantines once every longer lease has ended.
func TestAShorterTTLShortensQuarantinesOnceLongerLeasesHaveEnded(t *testing.T) {
	t.Parallel()
	_, _, l := limitedTo(t, 3, 5*time.Second, redisserver.Config{})
	begun := time.Now()
	done := make(chan error, 1)
	go func() { done <- l.SetMaxTTL(t.Context(), time.Second) }()
	eventually(t, 20*time.Second, "it is in force", func() bool { return all(granted(t, l), time.Second) })
	if values := l.Longest(t.Context()); time.Since(begun) < 4*time.Second && !all(values, 5*time.Second) {
		t.Errorf("a quarantine lasts %v", values)
	}
	must(t, <-done)
	if took := time.Since(begun); took < 5*time.Second || !all(l.Longest(t.Context()), time.Second) {
		t.Errorf("after %v a quarantine lasts %v", took, l.Longest(t.Context()))
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() { done <- l.SetMaxTTL(ctx, 500*time.Millisecond) }()
	eventually(t, 20*time.Second, "it is in force", func() bool { return all(granted(t, l), 500*time.Millisecond) })
	cancel()
	if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
}

// Of two changes at a time the older one ends nowhere, so no node's quarantine is too short for what another grants.
func TestAChangeOfTheMaxTTLEndsNoOtherOne(t *testing.T) {
	t.Parallel()
	_, _, l := limitedTo(t, 3, 20*time.Second, redisserver.Config{})
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
		if err := l.SetMaxTTL(t.Context(), ttl); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("%v: %v", ttl, err)
		}
	}
}

// A node that was away during a change gets the group's values when it is admitted, whatever it kept.
func TestALostNodeGetsTheGroupsMaxTTL(t *testing.T) {
	t.Parallel()
	_, servers, l := limitedTo(t, 3, 2*time.Second, redisserver.Config{AppendOnly: redisserver.Always})
	copied := client(t, servers[0].Addr).HGetAll(t.Context(), prefixOf(t, servers[0])+":h").Val()
	must(t, l.SetMaxTTL(t.Context(), 20*time.Second))
	c := client(t, servers[0].Addr)
	must(t, c.HSet(t.Context(), prefixOf(t, servers[0])+":h", "@maxttl", copied["@maxttl"], "@longest", copied["@longest"]).Err())
	restart(t, servers[0], nil)
	readmit(t, l, "node-1")
	if values := granted(t, l); !all(values, 20*time.Second) || !all(l.Longest(t.Context()), 20*time.Second) {
		t.Errorf("the nodes grant %v; a quarantine lasts %v", values, l.Longest(t.Context()))
	}
}

func prefixOf(t *testing.T, s *redisserver.Server) string {
	t.Helper()
	found := client(t, s.Addr).Keys(t.Context(), "*:h").Val()
	if len(found) != 1 {
		t.Fatalf("hashes: %q", found)
	}
	return strings.TrimSuffix(found[0], ":h")
}
