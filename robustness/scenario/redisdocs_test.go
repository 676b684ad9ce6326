//go:build linux

package scenario_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/robustness/relay"
)

// quarantine is how long a node of fencegate grants nothing after a loss: the longest lease.
const quarantine = 2 * time.Second

// "Client A acquires the lock in the master. The master crashes before the write to the key is transmitted to the
// replica. The replica gets promoted to master. Client B acquires the lock to the same resource A already holds a
// lock for."
func TestRedisDocsThePrimaryDiesBeforeTheReplicaHasTheLock(t *testing.T) {
	besides(t, options{ttl: quarantine, plain: long}, func(t *testing.T, w *world) {
		pair := w.replicated()
		first, second := w.client(w.addrs), w.client(w.addrs)
		pair.link.Hold(relay.Replies, true) // the primary's stream
		must(t, first.acquire(w.bounded()))
		pair.failover()
		w.acquireAfterALoss(first, second)
	})
}

// "If we restart a node without persistence, there are again N/2+1 nodes that another client can lock."
func TestRedisDocsANodeRestartsEmpty(t *testing.T) {
	besides(t, options{own: true, ttl: quarantine, plain: long}, func(t *testing.T, w *world) {
		first, second := w.client(w.only("ABC")), w.client(w.only("CDE"))
		must(t, first.acquire(w.bounded()))
		must(t, w.nodes[2].Restart(t.Context()))
		w.acquireAfterALoss(first, second)
	})
}

// "If Redis is configured, as by default, to fsync on disk every second, it is possible that after a restart our key is
// missing." A copy of the earlier data folder represents the state after a power failure.
func TestRedisDocsAPowerFailureLosesTheLastSecond(t *testing.T) {
	everySec := redisserver.Config{AppendOnly: redisserver.EverySec}
	besides(t, options{own: true, ttl: quarantine, plain: long, redis: everySec}, func(t *testing.T, w *world) {
		first, second := w.client(w.only("ABC")), w.client(w.only("CDE"))
		folder := w.folder(2)
		onDisk := t.TempDir()
		must(t, os.CopyFS(onDisk+"/data", os.DirFS(folder)))
		must(t, first.acquire(w.bounded()))
		must(t, w.nodes[2].Kill())
		must(t, os.RemoveAll(folder))
		must(t, os.CopyFS(folder, os.DirFS(onDisk+"/data")))
		must(t, w.nodes[2].Restart(t.Context()))
		w.acquireAfterALoss(first, second)
	})
}

// "Delayed restarts: make an instance unavailable, after a crash, for at least a bit more than the max TTL we use." The
// delay here suits the usual locks, and one client has taken a longer one: the plain library has no limit. Nodes of
// fencegate refuse leases longer than the group's longest, and wait by themselves.
func TestRedisDocsARestartIsDelayedForLessThanTheLongestLock(t *testing.T) {
	besides(t, options{own: true, ttl: quarantine, plain: long}, func(t *testing.T, w *world) {
		first, second := w.client(w.only("ABC")), w.client(w.only("CDE"))
		if w.fenced {
			w.wantNoLongerLease(first)
		}
		must(t, first.acquire(w.bounded()))
		must(t, w.nodes[2].Kill())
		usual := *w
		usual.ttl, usual.prefix = 500*time.Millisecond, w.prefix+"-usual"
		delay := plainRedlock(usual.settings(w.only("ABDE"), ""))
		defer delay.close()
		for range 2 { // the second time as soon as the first has ended
			must(t, delay.acquire(w.bounded()))
		}
		must(t, w.nodes[2].Restart(t.Context()))
		w.acquireAfterALoss(first, second)
	})
}

func (w *world) wantNoLongerLease(c *client) {
	w.t.Helper()
	f, ok := c.lessor.(*fenced)
	if !ok {
		w.t.Fatal("not fencegate's client")
	}
	_, err := f.locker.TryAcquire(w.t.Context(), resource, lock.WithTTL(2*w.ttl))
	if !errors.Is(err, fence.ErrInvalid) {
		w.t.Errorf("a lease that is longer than the quarantine: %v", err)
	}
}

// acquireAfterALoss lets the second client acquire what the first one holds, after a node lost that. With the plain
// library it succeeds at once. With fencegate it acquires nothing before the first lease has ended, and the first grant
// is then stale.
func (w *world) acquireAfterALoss(first, second *client) {
	w.t.Helper()
	ctx := w.bounded()
	err := second.try(ctx)
	if !w.fenced && (err != nil || first.left() <= 0) {
		w.t.Fatalf("the plain library should have two holders: %v, and the first has %v left", err, first.left())
	}
	if w.fenced && !errors.Is(err, lock.ErrNoQuorum) {
		w.t.Fatalf("the second client's acquisition: %v; want no quorum, for the node is not admitted", err)
	}
	for w.fenced && err != nil {
		if err = second.acquire(ctx); ctx.Err() != nil {
			w.t.Fatalf("the node is not admitted again: %v", err)
		}
	}
	if w.fenced && first.left() > 0 {
		w.t.Errorf("two holders: the first has %v left", first.left())
	}
	must(w.t, second.write(w.t.Context(), "new"))
	w.wantStaleWrite(first.write(w.t.Context(), "old"))
}

// "It is important to use the random value to release the lock: or a client that was blocked for longer than the
// validity time removes a lock that another client has acquired since." Both libraries compare; a plain DEL does not.
func TestRedisDocsALockIsReleasedThatAnotherHasAcquiredSince(t *testing.T) {
	besides(t, options{}, func(t *testing.T, w *world) {
		first, second, third := w.client(w.addrs), w.client(w.addrs), w.client(w.addrs)
		must(t, first.acquire(w.bounded()))
		must(t, second.acquire(w.bounded())) // as soon as the first lease has ended
		if err := first.release(t.Context()); err == nil && !w.fenced {
			t.Error("the plain library released a lock that is another's")
		}
		if err := third.try(t.Context()); err == nil {
			t.Error("the second client's lock is gone")
		}
		must(t, w.deleteLocks())
		if err := third.try(t.Context()); err != nil || second.left() <= 0 {
			t.Fatalf("after a DEL: %v, and the second client has %v left", err, second.left())
		}
		must(t, third.write(t.Context(), "new"))
		w.wantStaleWrite(second.write(t.Context(), "old"))
	})
}

// "The lock is auto-released when the client that holds it has
// crashed." That does not take back what the client had sent.
func TestRedisDocsAClientDiesAndItsWriteIsStillUnderWay(t *testing.T) {
	besides(t, options{}, func(t *testing.T, w *world) {
		network, writer := w.relayedWriter()
		first, second := w.process(w.addrs, writer), w.client(w.addrs)
		first.do(order{Do: "acquire"})
		network.Hold(relay.Requests, true)
		first.send(order{Do: "write", Value: "old"})
		first.awaitSent()
		first.kill()
		must(t, second.acquire(w.bounded())) // no release is needed
		must(t, second.write(t.Context(), "new"))
		network.Hold(relay.Requests, false)
		w.until("PostgreSQL has read what the dead client sent", func() bool { return network.Connections() == 0 })
		if value, want := w.value(), map[bool]string{false: "old", true: "new"}[w.fenced]; value != want {
			t.Errorf("the row is %q; want %q", value, want)
		}
	})
}

// "The maximum number of lock reacquisition attempts should be limited, otherwise one of the liveness properties is
// violated."
func TestRedisDocsALockIsExtendedWithoutACap(t *testing.T) {
	besides(t, options{}, func(t *testing.T, w *world) {
		stuck, waiting := w.client(w.addrs), w.client(w.addrs)
		if w.fenced {
			w.wantACap(stuck, waiting)
			return
		}
		must(t, stuck.acquire(w.bounded()))
		for begun := time.Now(); time.Since(begun) < 2*w.ttl; {
			must(t, stuck.extend(t.Context()))
			if err := waiting.try(t.Context()); err == nil {
				t.Fatal("the plain library has a cap")
			}
		}
	})
}

func (w *world) wantACap(stuck, waiting *client) {
	t := w.t
	t.Helper()
	f, ok := stuck.lessor.(*fenced)
	if !ok {
		t.Fatal("not fencegate's client")
	}
	why := make(chan error, 1)
	must(t, f.have(f.locker.Acquire(w.bounded(), resource,
		lock.WithKeepAlive(lock.KeepAlive{Renewals: 2, Ended: func(err error) { why <- err }}))))
	must(t, waiting.acquire(w.bounded()))
	if err := <-why; !errors.Is(err, lock.ErrCapped) {
		t.Errorf("the renewals ended with %v; want the cap", err)
	}
	must(t, waiting.write(t.Context(), "new"))
	w.wantStaleWrite(stuck.write(t.Context(), "old"))
}

// deleteLocks releases without a check, as a careless client does.
func (w *world) deleteLocks() error {
	for _, addr := range w.addrs {
		err := w.on(addr, func(ctx context.Context, node *redis.Client) error {
			names, err := node.Keys(ctx, w.prefix+"*"+resource).Result()
			if err != nil || len(names) == 0 {
				return err
			}
			return node.Del(ctx, names...).Err()
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// on connects to a node without a relay.
func (w *world) on(addr string, ask func(context.Context, *redis.Client) error) error {
	node := dialRedis(redis.Options{Addr: addr, MaxRetries: -1})
	return errors.Join(ask(w.t.Context(), node), node.Close())
}

// folder is where a node keeps its data.
func (w *world) folder(i int) string {
	w.t.Helper()
	var dir string
	must(w.t, w.on(w.nodes[i].Addr, func(ctx context.Context, node *redis.Client) error {
		found, err := node.ConfigGet(ctx, "dir").Result()
		dir = found["dir"]
		return err
	}))
	return dir
}

// replica is a primary and its replica behind one address, as with a failover.
type replica struct {
	w       *world
	primary *redisserver.Server
	second  *redisserver.Server
	link    *relay.Relay // from the replica to the primary
	address *relay.Relay
}

// replicated makes the world's only node such a pair.
func (w *world) replicated() *replica {
	t := w.t
	t.Helper()
	p := &replica{w: w, primary: testenv.OwnRedis(t, 1)[0]}
	p.link = newRelay(t, p.primary.Addr)
	host, port, _ := strings.Cut(p.link.Addr(), ":")
	p.second = testenv.OwnRedisWith(t, 1, redisserver.Config{Args: []string{"--replicaof", host + " " + port}})[0]
	p.address = newRelay(t, p.primary.Addr)
	w.addrs = []string{p.address.Addr()}
	if w.fenced {
		w.initialise()
	}
	w.until("the replica follows", func() bool {
		var info string
		must(t, w.on(p.second.Addr, func(ctx context.Context, node *redis.Client) (err error) {
			info, err = node.Info(ctx, "replication").Result()
			return err
		}))
		return strings.Contains(info, "master_link_status:up")
	})
	return p
}

// failover does what a failover manager does when the primary has died.
func (p *replica) failover() {
	p.w.t.Helper()
	must(p.w.t, p.primary.Kill())
	p.link.Cut()
	must(p.w.t, p.w.on(p.second.Addr, func(ctx context.Context, node *redis.Client) error {
		return node.Do(ctx, "REPLICAOF", "NO", "ONE").Err()
	}))
	p.address.Retarget(p.second.Addr)
	p.address.Cut()
}
