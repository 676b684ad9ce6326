package lock_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/internal/memredis"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/admin"
)

// stall is how long a connection waits for its node.
const stall = time.Second

// onSizes runs a test in a bubble for groups of one node, which has two connections, and of three.
func onSizes(t *testing.T, test func(t *testing.T, l *lock.Locker, nodes []*memredis.Node)) {
	t.Helper()
	for _, n := range []int{1, 3} {
		t.Run(fmt.Sprintf("%d nodes", n), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg, nodes := inMemory(t, n)
				test(t, started(t, cfg), nodes)
			})
		})
	}
}

func connections(nodes []*memredis.Node) (made int) {
	for _, n := range nodes {
		made += n.Connections()
	}
	return made
}

// deadlined is a connection whose writes end at their deadline, as those of a socket do.
type deadlined struct {
	net.Conn

	mu sync.Mutex
	at time.Time
}

func (c *deadlined) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = t
	return nil
}

func (c *deadlined) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

func (c *deadlined) Write(b []byte) (int, error) {
	c.mu.Lock()
	over := !c.at.IsZero() && !time.Now().Before(c.at)
	c.mu.Unlock()
	if over {
		return 0, os.ErrDeadlineExceeded
	}
	return c.Conn.Write(b)
}

// A batch of several sets a deadline for writing. If it stayed, it would end the connection during a later call.
func TestLeasesOfABurstAreReleasedAfterAQuietSecond(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 3} {
		t.Run(fmt.Sprintf("%d nodes", n), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg, nodes := inMemory(t, n)
				for i := range nodes {
					cfg.Nodes[i].Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
						c, err := nodes[i].Dial(ctx, network, addr)
						return &deadlined{Conn: c}, err
					}
				}
				l := started(t, cfg)
				leases := make([]*lock.Lease, 32)
				var all sync.WaitGroup
				for i := range leases {
					all.Go(func() {
						var err error
						leases[i], err = l.TryAcquire(t.Context(), fmt.Sprintf("r%d", i), lock.WithTTL(time.Minute))
						check(t, err)
					})
				}
				all.Wait()
				if t.Failed() {
					return
				}
				time.Sleep(stall + stall/5)
				before := connections(nodes)
				for _, lease := range leases {
					must(t, lease.Release(t.Context()))
				}
				if ended := connections(nodes) - before; ended != 0 {
					t.Errorf("%d connections ended under the releases", ended)
				}
				synctest.Wait()
				for i := range leases {
					freed(t, l, fmt.Sprintf("r%d", i))
				}
			})
		})
	}
}

func TestAReleaseWhoseAnswerWasLostIsSentAgain(t *testing.T) {
	t.Parallel()
	onSizes(t, func(t *testing.T, l *lock.Locker, nodes []*memredis.Node) {
		lease := acquire(t, l, "r")
		synctest.Wait()
		for _, n := range nodes {
			n.Replies.Lose(1)
		}
		must(t, lease.Release(t.Context()))
		synctest.Wait()
		freed(t, l, "r")
		for i, n := range nodes {
			if n.Replies.Lost() != 1 {
				t.Errorf("node %d lost %d answers", i+1, n.Replies.Lost())
			}
		}
	})
}

func TestAnExtensionWhoseAnswersWereLostIsMadeAgain(t *testing.T) {
	t.Parallel()
	onSizes(t, func(t *testing.T, l *lock.Locker, nodes []*memredis.Node) {
		lease := acquire(t, l, "r")
		synctest.Wait()
		for _, n := range nodes {
			n.Replies.Lose(1)
		}
		before := lease.Deadline().Time()
		must(t, lease.Extend(t.Context(), time.Minute))
		if moved := lease.Deadline().Time().Sub(before); moved < lock.DefaultTTL-time.Second {
			t.Errorf("the deadline moved by %v", moved)
		}
		release(t, lease)
	})
}

// A frozen node executes the acquire after it continues, when the caller has long returned and its release has failed.
// The node is owed that release, so no lock is left.
func TestANodeThatWasFrozenForSecondsKeepsNoGhostLock(t *testing.T) {
	t.Parallel()
	onSizes(t, func(t *testing.T, l *lock.Locker, nodes []*memredis.Node) {
		release(t, acquire(t, l, "r")) // connects
		synctest.Wait()
		nodes[0].Freeze()
		if len(nodes) > 1 {
			acquire(t, l, "r", lock.WithTTL(time.Minute)).ReleaseAsync()
		} else if _, err := l.TryAcquire(t.Context(), "r", lock.WithTTL(time.Minute)); !errors.Is(err, lock.ErrNodeTimeout) {
			t.Fatalf("acquire on a frozen node: %v", err)
		}
		time.Sleep(5 * stall) // the connection has ended, and attempts to make another, too
		nodes[0].Thaw()
		time.Sleep(2 * stall) // the release is tried once a second
		freed(t, l, "r")
	})
}

// A release is owed to a node while it restarts with its locks. Neither the new run nor its admission drops it.
func TestAReleaseDuringARestartIsMadeAfterTheAdmission(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 3} {
		t.Run(fmt.Sprintf("%d nodes", n), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg, nodes := inMemory(t, n)
				cfg.Epochs = &epochs{}
				l := started(t, cfg)
				lease := acquire(t, l, "r", lock.WithTTL(time.Minute))
				synctest.Wait()
				nodes[0].Requests.Lose(1 << 20) // the node is away
				if err := lease.Release(t.Context()); (err == nil) != (n > 1) {
					t.Errorf("release without the node: %v", err)
				}
				time.Sleep(3 * stall)
				nodes[0].Requests.Lose(0)
				restarted(t, l, nodes[0])
				time.Sleep(2 * stall) // the release is tried before the admission
				if n > 1 {
					must(t, admin.Of(l).Admit(t.Context(), "node-1"))
				} else {
					begun, err := l.BeginAdmission(t.Context(), "node-1")
					must(t, err)
					must(t, l.EndQuarantine(t.Context(), "node-1"))
					must(t, l.EndAdmission(t.Context(), begun))
				}
				time.Sleep(2 * stall)
				freed(t, l, "r")
			})
		})
	}
}
