package lock_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/admin"
)

// recorder is a Metrics that records its calls.
type recorder struct {
	mu   sync.Mutex
	news []string
}

func (m *recorder) add(what ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.news = append(m.news, strings.Join(what, " "))
}

// says fails unless this is the news since it was last asked.
func (m *recorder) says(t *testing.T, want ...string) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if !slices.Equal(m.news, want) {
		t.Errorf("events %q; want %q", m.news, want)
	}
	m.news = nil
}

func (m *recorder) Acquired(time.Duration, int)    { m.add("acquired") }
func (m *recorder) Failed(operation, cause string) { m.add("failed", operation, cause) }
func (m *recorder) Ended(_ time.Duration, lost bool) {
	m.add(map[bool]string{true: "lost", false: "released"}[lost])
}
func (m *recorder) Renewed()         { m.add("renewed") }
func (m *recorder) Slow(node string) { m.add("slow", node) }

func TestMetricsHearWhatHappens(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 1)
		m := &recorder{}
		cfg.Metrics = m
		l := started(t, cfg)
		lease := acquire(t, l, "r")
		m.says(t, "acquired")
		must(t, lease.Extend(t.Context(), time.Minute))
		m.says(t, "renewed")
		if _, err := l.TryAcquire(t.Context(), "r"); !errors.Is(err, lock.ErrHeld) {
			t.Fatal(err)
		}
		m.says(t, "failed acquire held")
		release(t, lease)
		m.says(t, "released")
		acquire(t, l, "expires")
		m.says(t, "acquired")
		time.Sleep(lock.DefaultTTL)
		synctest.Wait()
		m.says(t, "lost")
		nodes[0].Freeze()
		if _, err := l.TryAcquire(t.Context(), "r"); !errors.Is(err, lock.ErrNoQuorum) {
			t.Fatal(err)
		}
		m.says(t, "slow node-1", "failed acquire no_quorum")
		nodes[0].Thaw()
	})
}

func TestMetricsHearOfSeveralLeasesAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := inMemory(t, 3)
		m := &recorder{}
		cfg.Metrics = m
		l := started(t, cfg)
		leases, err := l.AcquireAll(t.Context(), []string{"a", "b"}, lock.WithTTL(time.Minute))
		must(t, err)
		m.says(t, "acquired", "acquired")
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if _, err := l.AcquireAll(ctx, []string{"b", "c"}); !errors.Is(err, lock.ErrHeld) {
			t.Fatal(err)
		}
		m.says(t, "failed acquire held")
		for _, lease := range leases {
			release(t, lease)
		}
		m.says(t, "released", "released")
	})
}

// In a cluster the counters of a resource and its lock would be in different slots.
func TestARedisClusterIsRefusedAtFirstContactWithTheReason(t *testing.T) {
	t.Parallel()
	cfg, _ := own(t, 1, redisserver.Config{Args: []string{"--cluster-enabled", "yes"}})
	l := locker(t, cfg)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := l.Acquire(ctx, "r"); !errors.Is(err, lock.ErrCluster) || ctx.Err() != nil {
		t.Errorf("acquire: %v", err)
	}
	eventually(t, time.Minute, "the node's state says so", func() bool { return errors.Is(admin.Of(l).Status(t.Context())[0].Err, lock.ErrCluster) })
	if err := admin.Of(l).Init(t.Context()); !errors.Is(err, lock.ErrCluster) {
		t.Errorf("init: %v", err)
	}
}
