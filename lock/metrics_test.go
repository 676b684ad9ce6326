package lock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
)

// told is a Metrics that records its calls.
type told struct {
	mu   sync.Mutex
	news []string
}

func (m *told) add(what ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.news = append(m.news, strings.Join(what, " "))
}

func (m *told) has(what string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Contains(m.news, what)
}

func (m *told) Acquired(time.Duration, int)    { m.add("acquired") }
func (m *told) Failed(operation, cause string) { m.add("failed", operation, cause) }
func (m *told) Ended(_ time.Duration, lost bool) {
	m.add(map[bool]string{true: "lost", false: "released"}[lost])
}
func (m *told) Renewed()         { m.add("renewed") }
func (m *told) Slow(node string) { m.add("slow", node) }

func TestMetricsHearWhatHappens(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 1, redisserver.Config{})
	m := &told{}
	cfg.Metrics = m
	l := started(t, cfg)
	lease := acquire(t, l, "r")
	must(t, lease.Extend(t.Context(), time.Minute))
	if _, err := tryAcquire(t, l, "r"); !errors.Is(err, lock.ErrHeld) {
		t.Fatal(err)
	}
	release(t, lease)
	acquire(t, l, "short", lock.WithTTL(20*time.Millisecond))
	cfg.NodeTimeout = silence
	hasty := locker(t, cfg)
	freeze(t, servers[0])
	if _, err := hasty.TryAcquire(t.Context(), "r"); !errors.Is(err, lock.ErrNoQuorum) {
		t.Fatal(err)
	}
	must(t, servers[0].Thaw())
	for _, want := range []string{"acquired", "renewed", "failed acquire held", "released", "lost", "slow node-1", "failed acquire no_quorum"} {
		eventually(t, 20*time.Second, want, func() bool { return m.has(want) })
	}
}

// In a cluster the counters of a resource and its lock would be in different slots.
func TestARedisClusterIsRefusedAtFirstContactWithTheReason(t *testing.T) {
	t.Parallel()
	cfg, _ := own(t, 1, redisserver.Config{Args: []string{"--cluster-enabled", "yes"}})
	l := locker(t, cfg)
	if err := patiently(t.Context(), func() error { return l.Init(t.Context()) }); !errors.Is(err, lock.ErrCluster) {
		t.Errorf("init: %v", err)
	}
	if _, err := tryAcquire(t, l, "r"); !errors.Is(err, lock.ErrCluster) {
		t.Errorf("acquire: %v", err)
	}
}

func TestMetricsHearOfSeveralLeasesAtOnce(t *testing.T) {
	t.Parallel()
	cfg := shared(t, 3)
	m := &told{}
	cfg.Metrics = m
	l := started(t, cfg)
	leases := acquireAll(t, l, []string{"a", "b"}, lock.WithTTL(time.Minute))
	if !m.has("acquired") {
		t.Error("nothing of what was acquired")
	}
	testenv.Paced(t, 100*time.Millisecond, func(patience time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if _, err := l.AcquireAll(ctx, []string{"b", "c"}); !errors.Is(err, lock.ErrHeld) {
			return fmt.Errorf("it had not found that one is held: %w", err)
		}
		return nil
	})
	if !m.has("failed acquire held") {
		t.Error("nothing of what was held")
	}
	for _, lease := range leases {
		release(t, lease)
	}
}
