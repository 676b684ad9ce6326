package lock_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/lock"
)

// brisk is a node timeout for tests of connections that end. A connection then waits stall for its node, which is the
// minimum.
const (
	brisk = 250 * time.Millisecond
	stall = time.Second
)

// relayed is a configuration over n nodes with a relay before each.
func relayed(t *testing.T, n int) (lock.Config, []*relay) {
	t.Helper()
	cfg := shared(t, n)
	relays := make([]*relay, n)
	for i := range relays {
		relays[i] = newRelay(t, cfg.Nodes[i].Addr)
		cfg.Nodes[i].Addr = relays[i].addr
	}
	return cfg, relays
}

// lose makes each relay drop the next n answers.
func lose(relays []*relay, n int64) {
	for _, r := range relays {
		r.lose.Store(n)
	}
}

func accepted(relays []*relay) (n int64) {
	for _, r := range relays {
		n += r.accepted.Load()
	}
	return n
}

func TestLeasesOfABurstAreReleasedAfterAQuietSecond(t *testing.T) {
	t.Parallel()
	for _, nodes := range []int{1, 3, 5} {
		t.Run(fmt.Sprintf("redis-%d", nodes), func(t *testing.T) {
			t.Parallel()
			cfg, relays := relayed(t, nodes)
			cfg.NodeTimeout = brisk
			l := started(t, cfg)
			var ended int64
			for range 5 { // a connection also ends if the machine is so busy that its node is silent for a second
				if ended = burst(t, l, relays); ended == 0 {
					return
				}
			}
			t.Errorf("%d connections ended under the releases", ended)
		})
	}
}

// burst acquires leases at once and releases them after a quiet second. It returns how many connections ended then.
func burst(t *testing.T, l *lock.Locker, relays []*relay) (ended int64) {
	t.Helper()
	leases := make([]*lock.Lease, 32)
	begin := make(chan struct{})
	var all sync.WaitGroup
	for i := range leases {
		all.Go(func() {
			<-begin
			leases[i], _ = l.TryAcquire(t.Context(), fmt.Sprintf("r%d", i), lock.WithTTL(time.Minute))
		})
	}
	close(begin)
	all.Wait()
	<-time.After(stall + stall/5)
	connections := accepted(relays)
	for i, lease := range leases {
		if lease == nil {
			continue // the machine was too busy
		}
		if err := lease.Release(t.Context()); err != nil && !errors.Is(err, lock.ErrNodeTimeout) {
			t.Errorf("release %d: %v", i, err)
		}
	}
	ended = accepted(relays) - connections
	for i := range leases {
		free(t, l, fmt.Sprintf("r%d", i))
	}
	return ended
}

func TestAReleaseWhoseAnswerWasLostIsSentAgain(t *testing.T) {
	t.Parallel()
	for _, nodes := range []int{1, 3, 5} {
		t.Run(fmt.Sprintf("redis-%d", nodes), func(t *testing.T) {
			t.Parallel()
			cfg, relays := relayed(t, nodes)
			l := started(t, cfg)
			for range 5 {
				lease := acquire(t, l, "r", lock.WithTTL(time.Minute))
				lose(relays, 1)
				must(t, lease.Release(t.Context()))
				lose(relays, 0)
				free(t, l, "r")
			}
		})
	}
}

func TestAnExtensionWhoseAnswersWereLostIsMadeAgain(t *testing.T) {
	t.Parallel()
	for _, nodes := range []int{1, 3, 5} {
		t.Run(fmt.Sprintf("redis-%d", nodes), func(t *testing.T) {
			t.Parallel()
			cfg, relays := relayed(t, nodes)
			l := started(t, cfg)
			lease := acquire(t, l, "r", lock.WithTTL(time.Minute))
			for range 5 {
				lose(relays, 1)
				before := lease.Deadline()
				must(t, lease.Extend(t.Context(), 2*time.Minute))
				if !lease.Deadline().After(before) {
					t.Error("the deadline stands where it was")
				}
				lose(relays, 0)
			}
			release(t, lease)
		})
	}
}

// A frozen node executes the acquire after it continues, when the caller has long returned and its release has failed.
// The node is owed that release, so no lock is left.
func TestANodeThatWasFrozenForSecondsKeepsNoGhostLock(t *testing.T) {
	t.Parallel()
	for _, nodes := range []int{1, 3} {
		t.Run(fmt.Sprintf("redis-%d", nodes), func(t *testing.T) {
			t.Parallel()
			cfg, servers := own(t, nodes, redisserver.Config{})
			cfg.NodeTimeout = brisk
			l := started(t, cfg)
			eventually(t, 10*time.Second, "connections are up", func() bool {
				lease, err := l.TryAcquire(t.Context(), "r")
				return err == nil && lease.Release(t.Context()) == nil
			})
			freeze(t, servers[0])
			if nodes > 1 {
				acquire(t, l, "r", lock.WithTTL(time.Minute)).ReleaseAsync()
			} else if _, err := l.TryAcquire(t.Context(), "r", lock.WithTTL(time.Minute)); !errors.Is(err, lock.ErrNodeTimeout) {
				t.Fatalf("acquire on a frozen node: %v", err)
			}
			<-time.After(3 * stall) // the connection has ended, and the attempt to make another, too
			must(t, servers[0].Thaw())
			free(t, l, "r")
		})
	}
}

// A release is owed to a node while it restarts with its locks. Neither the new run nor its admission drops it.
func TestAReleaseDuringARestartIsMadeAfterTheAdmission(t *testing.T) {
	t.Parallel()
	for _, nodes := range []int{1, 3} {
		t.Run(fmt.Sprintf("redis-%d", nodes), func(t *testing.T) {
			t.Parallel()
			cfg, servers := own(t, nodes, redisserver.Config{AppendOnly: redisserver.Always})
			cfg.NodeTimeout = brisk
			cfg.Epochs, cfg.Nodes[0].Durable = &fences{}, nodes == 1
			l := started(t, cfg)
			lease := acquireEverywhere(t, l, "r", lock.WithTTL(4*time.Minute))
			must(t, servers[0].Kill())
			// On a busy machine the two others may be silent for longer than a brisk timeout.
			if err := lease.Release(t.Context()); (err == nil) != (nodes > 1) && !errors.Is(err, lock.ErrNodeTimeout) {
				t.Errorf("release without the node: %v", err)
			}
			must(t, servers[0].Restart(t.Context()))
			<-time.After(2 * stall) // the release is tried before the admission
			readmit(t, l, "node-1")
			free(t, l, "r")
		})
	}
}
