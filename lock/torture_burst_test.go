//go:build linux

package lock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/fencegate/fencegate/lock"
)

// Callers come in bursts, in which messages are lost and delayed and nodes are frozen, and hold their leases over a
// quiet second, which is longer than any wait of a connection. Afterwards every released resource is free on every
// node, and so is every resource whose acquisition failed.
func TestTortureOfBursts(t *testing.T) {
	t.Parallel()
	seed := *tortureSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 5))
	g := newTortureGroup(t, scenario{nodes: 3, odds: odds{lose: 6, late: 4, freeze: 2}})
	l := started(t, lock.Config{Nodes: nodesAt(g.addrs()...), KeyPrefix: lock.Prefix("torture"), NodeTimeout: brisk, Epochs: &epochs{}})
	until := time.Now().Add(*tortureFor)
	held, bursts := 0, 0
	for ; bursts < 3 || time.Now().Before(until); bursts++ {
		leases := g.burst(t, l, bursts, random)
		<-time.After(stall + stall/5)
		for _, lease := range leases {
			if err := lease.Release(t.Context()); err != nil && !errors.Is(err, lock.ErrNodeTimeout) {
				t.Errorf("release: %v", err)
			}
		}
		for i := range burstSize {
			free(t, l, fmt.Sprintf("%d/%d", bursts, i))
		}
		held += len(leases)
	}
	t.Logf("%d bursts, %d leases of %d", bursts, held, bursts*burstSize)
	if held < burstSize {
		t.Errorf("only %d leases in %d bursts", held, bursts)
	}
}

const (
	burstSize = 48
	brisk     = 250 * time.Millisecond // with it, a connection waits for its node for stall, which is the minimum
)

// burst returns the leases that callers acquired during the faults.
func (g *tortureGroup) burst(t *testing.T, l *lock.Locker, number int, random *rand.Rand) []*lock.Lease {
	ctx, stop := context.WithCancel(t.Context())
	var tormentors, callers sync.WaitGroup
	for _, n := range g.nodes {
		own := rand.New(rand.NewPCG(random.Uint64(), 6))
		tormentors.Go(func() { g.torment(ctx, t, n, own) })
	}
	var mu sync.Mutex
	var leases []*lock.Lease
	for i := range burstSize {
		after := time.Duration(random.IntN(6)) * 200 * time.Millisecond // so that many come at the same moment
		callers.Go(func() {
			rest(ctx, after)
			lease, err := l.TryAcquire(ctx, fmt.Sprintf("%d/%d", number, i), lock.WithTTL(lock.DefaultMaxTTL))
			if err != nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			leases = append(leases, lease)
		})
	}
	callers.Wait()
	stop()
	tormentors.Wait()
	return leases
}
