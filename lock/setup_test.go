package lock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/memredis"
	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/admin"
)

// patient is a node timeout for tests that are not about timeouts, because the machine may be busy with other tests.
// silence is one for tests that wait for it: the nodes that do answer have done so by then.
const (
	patient = lock.Patient
	silence = 2 * time.Second
)

// maxTTL is the groups' longest TTL, and so their quarantine: longer than a test may wait.
const maxTTL = 5 * time.Minute

// nodesAt makes nodes from addresses.
func nodesAt(addrs ...string) []lock.Node {
	nodes := make([]lock.Node, len(addrs))
	for i, addr := range addrs {
		nodes[i] = lock.Node{Name: fmt.Sprintf("node-%d", i+1), Addr: addr}
	}
	return nodes
}

// shared is a configuration over n real nodes that other tests use, too.
func shared(t *testing.T, n int) lock.Config {
	t.Helper()
	r := testenv.Redis(t, n)
	return lock.Config{Nodes: nodesAt(r.Addrs...), KeyPrefix: lock.Prefix(r.Prefix), NodeTimeout: patient, MaxTTL: maxTTL}
}

// own is a configuration over n real nodes that the test may break.
func own(t *testing.T, n int, server redisserver.Config) (lock.Config, []*redisserver.Server) {
	t.Helper()
	servers := testenv.OwnRedisWith(t, n, server)
	addrs := make([]string, n)
	for i, s := range servers {
		addrs[i] = s.Addr
	}
	// Each has its own prefix: another test's node may get the port of a killed node, and this test's Locker would
	// reach it.
	prefix := fmt.Sprintf("own-%d", prefixes.Add(1))
	return lock.Config{Nodes: nodesAt(addrs...), KeyPrefix: lock.Prefix(prefix), NodeTimeout: patient, MaxTTL: maxTTL}, servers
}

var prefixes atomic.Int64

// startBare starts a server on this machine's loopback, even if other tests use containers, because these servers and
// their Sentinel must reach each other.
func startBare(t *testing.T, args ...string) *redisserver.Server {
	t.Helper()
	s, err := redisserver.Start(t.Context(), redisserver.Config{Args: args})
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	return s
}

// inMemory is a configuration over n nodes in a bubble of testing/synctest, with the product's own times.
func inMemory(t *testing.T, n int) (lock.Config, []*memredis.Node) {
	t.Helper()
	nodes := make([]*memredis.Node, n)
	cfg := lock.Config{}
	for i := range nodes {
		nodes[i] = memredis.Start(t)
		name := fmt.Sprintf("node-%d", i+1)
		cfg.Nodes = append(cfg.Nodes, lock.Node{Name: name, Addr: name, Dialer: nodes[i].Dial})
	}
	return cfg, nodes
}

// locker creates a Locker that is closed at the test's end.
func locker(t *testing.T, cfg lock.Config) *lock.Locker {
	t.Helper()
	l, err := lock.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return l
}

// prefixOf is the prefix of a configuration's keys.
func prefixOf(cfg lock.Config) string {
	if cfg.KeyPrefix == nil {
		return lock.DefaultKeyPrefix
	}
	prefix, _ := cfg.KeyPrefix(context.Background())
	return prefix
}

// started creates a Locker on an initialised group.
func started(t *testing.T, cfg lock.Config) *lock.Locker {
	t.Helper()
	l := locker(t, cfg)
	initialise(t, l)
	return l
}

func initialise(t testing.TB, l *lock.Locker) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	err := admin.Of(l).Init(ctx)
	for errors.Is(err, lock.ErrNodeTimeout) && ctx.Err() == nil { // from a query of the nodes, which has a second
		err = admin.Of(l).Init(ctx)
	}
	if err != nil {
		t.Fatalf("init: %v", err)
	}
}

// status asks until all nodes have answered in time.
func status(t *testing.T, l *lock.Locker) []admin.NodeStatus {
	t.Helper()
	var all []admin.NodeStatus
	eventually(t, 20*time.Second, "all nodes answer in time", func() bool {
		all = admin.Of(l).Status(t.Context())
		return !slices.ContainsFunc(all, func(st admin.NodeStatus) bool { return errors.Is(st.Err, lock.ErrNodeTimeout) })
	})
	return all
}

// eventually polls until ok, at most for the given time.
func eventually(t *testing.T, within time.Duration, what string, ok func() bool) {
	t.Helper()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	deadline := time.After(within)
	for !ok() {
		select {
		case <-ticker.C:
		case <-deadline:
			t.Fatalf("not within %v: %s", within, what)
		}
	}
}

// acquire takes a lease that must be available.
func acquire(t *testing.T, l *lock.Locker, resource string, opts ...lock.AcquireOption) *lock.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	lease, err := l.Acquire(ctx, resource, opts...)
	if err != nil {
		t.Fatalf("acquire %q: %v", resource, err)
	}
	return lease
}

func token(t *testing.T, lease *lock.Lease) fence.Token {
	t.Helper()
	grant, err := lease.Grant()
	if err != nil {
		t.Fatalf("grant: %v", err)
	}
	return grant.Token
}

func release(t *testing.T, lease *lock.Lease) {
	t.Helper()
	if err := lease.Release(t.Context()); err != nil {
		t.Fatalf("release: %v", err)
	}
}

// register is an Armer in memory: a compare-and-set per resource.
type register struct {
	mu     sync.Mutex
	tokens map[string]fence.Token
	before func(a fence.Arming) error // runs first, if set
	arms   atomic.Int64
}

func (r *register) Arm(_ context.Context, all ...fence.Arming) error {
	r.arms.Add(1)
	for _, a := range all {
		if r.before != nil {
			if err := r.before(a); err != nil {
				return err
			}
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.tokens == nil {
		r.tokens = make(map[string]fence.Token)
	}
	for _, a := range all {
		if recorded := r.tokens[a.Resource]; recorded >= a.Token {
			return &fence.NotRaisedError{Resource: a.Resource, Offered: a.Token, Recorded: recorded}
		}
	}
	for _, a := range all {
		r.tokens[a.Resource] = a.Token
	}
	return nil
}

// Raised says what Redis may have lost, as PostgreSQL does.
func (r *register) Raised(context.Context) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.tokens) > 0, nil
}

func (r *register) End(context.Context, fence.Ending) error { return nil }
func (r *register) Floor(string) fence.Token                { return 0 }

// anyFence arms everything. Its methods are replaced one by one.
type anyFence struct{}

func (anyFence) Arm(context.Context, ...fence.Arming) error { return nil }
func (anyFence) End(context.Context, fence.Ending) error    { return nil }
func (anyFence) Floor(string) fence.Token                   { return 0 }
func (anyFence) Raised(context.Context) (bool, error)       { return false, nil }

// epochs is an EpochStore in memory.
type epochs struct{ last atomic.Int64 }

func (e *epochs) RaiseEpoch(_ context.Context, above int64) (int64, error) {
	for {
		last := e.last.Load()
		next := max(last, above) + 1
		if e.last.CompareAndSwap(last, next) {
			return next, nil
		}
	}
}

// dead is a waiter in a queue whose process is gone.
var dead = redis.Z{Score: -1, Member: strings.Repeat("0", 32) + ":1"}
