//go:build linux

package lock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/fencegate/fencegate/internal/leases/torture"
	"github.com/fencegate/fencegate/lock"
)

// Callers come in bursts, in which messages are lost and delayed and nodes are frozen, and hold their leases over a
// quiet second, which is longer than any wait of a connection. Afterwards every released resource is free on every
// node, and so is every resource whose acquisition failed.
func TestTortureOfBursts(t *testing.T) {
	t.Parallel()
	g := newTortureGroup(t, scenario{nodes: 3, odds: odds{freeze: 1}})
	field := torture.NewField(t, torture.Config{Servers: g.servers(), TTL: 60 * time.Millisecond, Longest: 2 * time.Second})
	l := started(t, lock.Config{Nodes: nodesAt(field.Connect(t)...), KeyPrefix: lock.Prefix("torture"), NodeTimeout: brisk, Epochs: &epochs{}})
	until := time.Now().Add(*torture.For)
	held, bursts := 0, 0
	for ; bursts < 3 || time.Now().Before(until); bursts++ {
		leases := burst(t, field, l, bursts)
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
	t.Logf("%d bursts, %d leases of %d; %s", bursts, held, bursts*burstSize, field.Faults())
	if held < burstSize {
		t.Errorf("only %d leases in %d bursts", held, bursts)
	}
}

const (
	burstSize = 48
	brisk     = 250 * time.Millisecond // with it, a connection waits for its node for stall, which is the minimum
)

// burst returns the leases that callers acquired during the faults.
func burst(t *testing.T, field *torture.Field, l *lock.Locker, number int) []*lock.Lease {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	var faults, callers sync.WaitGroup
	faults.Go(func() { field.Torment(ctx, t) })
	var mu sync.Mutex
	var leases []*lock.Lease
	for i := range burstSize {
		after := time.Duration(i%6) * 200 * time.Millisecond // so that many come at the same moment
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
	faults.Wait()
	return leases
}
