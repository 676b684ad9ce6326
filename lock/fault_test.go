package lock_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/lock"
)

// relay stands before a node and loses replies: what was asked has been done,
// and nobody hears of it.
type relay struct {
	listener net.Listener
	losing   atomic.Bool
	lost     atomic.Int64
}

func newRelay(t *testing.T, server string) *relay {
	t.Helper()
	var conns sync.WaitGroup
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	r := &relay{listener: listener}
	ctx, stop := context.WithCancel(context.Background())
	conns.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			conns.Go(func() { r.carry(ctx, client, server) })
		}
	})
	t.Cleanup(func() {
		stop()
		_ = listener.Close()
		conns.Wait()
	})
	return r
}

func (r *relay) carry(ctx context.Context, client net.Conn, server string) {
	defer client.Close()
	node, err := net.Dial("tcp", server)
	if err != nil {
		return
	}
	defer node.Close()
	defer context.AfterFunc(ctx, func() { _ = client.Close(); _ = node.Close() })()
	var both sync.WaitGroup
	pass := func(from, to net.Conn, lossy bool) {
		defer from.Close()
		defer to.Close()
		buf := make([]byte, 32<<10)
		for {
			n, err := from.Read(buf)
			if err != nil {
				return
			}
			if lossy && r.losing.Load() {
				r.lost.Add(1)
				return
			}
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
	}
	both.Go(func() { pass(client, node, false) })
	both.Go(func() { pass(node, client, true) })
	both.Wait()
}

// faultTime is how long each group of nodes is tormented. FENCEGATE_TORTURE
// makes it longer, such as 10m.
func faultTime(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("FENCEGATE_TORTURE")
	if text == "" {
		return 6 * time.Second
	}
	d, err := time.ParseDuration(text)
	must(t, err)
	return d
}

// Tokens are unique and rise whatever happens to nodes and messages: leases of
// a few milliseconds, lost replies, nodes killed with and without their data,
// and nodes that stand still. No Armer helps.
func TestTokensAreUniqueAndRiseUnderFaults(t *testing.T) {
	t.Parallel()
	for _, n := range []int{3, 5} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			torment(t, n, rand.New(rand.NewPCG(seed, 0)), faultTime(t))
		})
	}
}

func torment(t *testing.T, n int, random *rand.Rand, lasting time.Duration) {
	t.Helper()
	cfg := lock.Config{
		KeyPrefix: fmt.Sprintf("fault-%d", n), MaxTTL: 100 * time.Millisecond,
		Epochs: &epochs{}, NodeTimeout: 100 * time.Millisecond,
	}
	servers := make([]*redisserver.Server, n)
	relays := make([]*relay, n)
	for i := range servers {
		server := redisserver.Config{}
		if i%2 == 0 {
			server.AppendOnly = redisserver.Always
		}
		_, one := own(t, 1, server)
		servers[i], relays[i] = one[0], newRelay(t, one[0].Addr)
		cfg.Nodes = append(cfg.Nodes, lock.Node{Name: fmt.Sprint("node-", i), Addr: relays[i].listener.Addr().String()})
	}
	admin := started(t, cfg)
	stop := time.Now().Add(lasting)
	var h torments
	var workers sync.WaitGroup
	for range 6 {
		l, own := locker(t, cfg), rand.New(rand.NewPCG(random.Uint64(), 1))
		workers.Go(func() { h.work(t, l, own, stop) })
	}
	kills := 0
	for time.Now().Before(stop) {
		i := random.IntN(n)
		switch random.IntN(4) {
		case 0:
			must(t, servers[i].Freeze())
			wait(t, time.Duration(random.IntN(150))*time.Millisecond)
			must(t, servers[i].Thaw())
		case 1:
			kills++
			restart(t, servers[i], nil)
			readmit(t, admin, cfg.Nodes[i].Name)
		default:
			relays[i].losing.Store(true)
			wait(t, time.Duration(random.IntN(30))*time.Millisecond)
			relays[i].losing.Store(false)
		}
	}
	workers.Wait()
	var lost int64
	for _, r := range relays {
		lost += r.lost.Load()
	}
	duplicates, inversions := verify(h.entries)
	t.Logf("%d acquisitions, %d failed, %d kills, %d replies lost: %d duplicates, %d inversions",
		len(h.entries), h.failed, kills, lost, duplicates, inversions)
	if duplicates != 0 || inversions != 0 {
		t.Errorf("%d duplicates, %d inversions", duplicates, inversions)
	}
	if len(h.entries) < 20 {
		t.Errorf("only %d acquisitions", len(h.entries))
	}
}

// torments is what acquisitions were told.
type torments struct {
	mu      sync.Mutex
	entries []acquisition
	failed  int
}

// work acquires one resource again and again; every other lease is left to expire.
func (h *torments) work(t *testing.T, l *lock.Locker, random *rand.Rand, stop time.Time) {
	for time.Now().Before(stop) {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		begun := time.Now()
		lease, err := l.Acquire(ctx, "r", lock.WithTTL(time.Duration(6+random.IntN(30))*time.Millisecond))
		cancel()
		h.mu.Lock()
		if err == nil {
			h.entries = append(h.entries, acquisition{begun, time.Now(), lease.Ref().Token})
		} else {
			h.failed++
		}
		h.mu.Unlock()
		if err == nil && random.IntN(2) == 0 {
			lease.ReleaseAsync()
		}
	}
}

// wait lets a fault last.
func wait(t *testing.T, d time.Duration) {
	t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
	}
}
