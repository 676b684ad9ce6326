package lock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/leases/torture"
	"github.com/fencegate/fencegate/internal/memredis"
	"github.com/fencegate/fencegate/lock"
)

// groups runs a test in a bubble for each size of a group: the only node of a group has two connections.
func groups(t *testing.T, sizes []int, test func(t *testing.T, cfg lock.Config, nodes []*memredis.Node)) {
	t.Helper()
	for _, n := range sizes {
		t.Run(fmt.Sprintf("%d nodes", n), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg, nodes := inMemory(t, n)
				test(t, cfg, nodes)
			})
		})
	}
}

// outlastDials lets a bubble end after go-redis' last attempt to reach a node that is down, a second after its client
// was closed. Call it before the nodes are started.
func outlastDials(t *testing.T) {
	t.Helper()
	t.Cleanup(func() { time.Sleep(2 * time.Second) })
}

// leased takes a lease, which must be free. Nodes that answer at once all have its lock.
func leased(t *testing.T, l *lock.Locker, resource string, opts ...lock.AcquireOption) *lock.Lease {
	t.Helper()
	lease, err := l.TryAcquire(t.Context(), resource, opts...)
	must(t, err)
	synctest.Wait() // a quorum suffices for a lease
	return lease
}

// unlocked fails unless no node has a lock of the resource once everything has arrived.
func unlocked(t *testing.T, l *lock.Locker, resource string) {
	t.Helper()
	synctest.Wait()
	ins, err := leasing.One(l.Inspect(t.Context(), resource))
	must(t, err)
	for _, m := range ins.Members {
		if m.Locked || m.Err != nil {
			t.Errorf("%s of %s: %+v", resource, m.Name, m)
		}
	}
}

// outcome is the result of an acquisition in the background.
type outcome struct {
	lease *lock.Lease
	err   error
	after time.Duration
}

// waiting acquires in the background. Nodes that answer at once have done so when it returns.
func waiting(ctx context.Context, l *lock.Locker, resource string, opts ...lock.AcquireOption) <-chan outcome {
	out := make(chan outcome, 1)
	begun := time.Now()
	go func() {
		lease, err := l.Acquire(ctx, resource, opts...)
		out <- outcome{lease, err, time.Since(begun)}
	}()
	synctest.Wait()
	return out
}

// slowly has each message to and from the nodes take up to most, at random. It returns the number of requests so far.
func slowly(nodes []*memredis.Node, most time.Duration) (requests *atomic.Int64) {
	requests = new(atomic.Int64)
	for _, n := range nodes {
		n.Requests.Delay(func() time.Duration { requests.Add(1); return rand.N(most) })
		n.Replies.Delay(func() time.Duration { return rand.N(most) })
	}
	return requests
}

func TestAcquireGivesARisingTokenAndOneHolder(t *testing.T) {
	t.Parallel()
	groups(t, []int{1, 3}, func(t *testing.T, cfg lock.Config, _ []*memredis.Node) {
		l := started(t, cfg)
		var first fence.Token
		for i := range 20 {
			lease, err := l.Acquire(t.Context(), "orders/1001", lock.WithHolder("worker-a"))
			must(t, err)
			grant, err := lease.Grant()
			must(t, err)
			if i == 0 {
				first = grant.Token
			}
			if grant.Token != first+fence.Token(i) || grant.Seal.IsZero() || grant.Resource != "orders/1001" {
				t.Errorf("grant %v; the first one's token is %d", grant, first)
			}
			_, err = l.TryAcquire(t.Context(), "orders/1001")
			held, ok := errors.AsType[*leasing.HeldError](err)
			if !ok || held.Holder != "worker-a" || held.RetryAfter != lock.DefaultTTL {
				t.Errorf("second acquisition: %v (%+v)", err, held)
			}
			must(t, lease.Release(t.Context()))
			if _, err := lease.Grant(); !errors.Is(err, lock.ErrReleased) {
				t.Errorf("grant after release: %v", err)
			}
		}
	})
}

func TestTokensAreUniqueAndRiseUnderConcurrency(t *testing.T) {
	t.Parallel()
	groups(t, []int{3, 5}, func(t *testing.T, cfg lock.Config, nodes []*memredis.Node) {
		const lockers, callers, each = 2, 4, 8
		started(t, cfg)
		slowly(nodes, 10*time.Millisecond)
		var h history
		var done sync.WaitGroup
		for range lockers {
			l := locker(t, cfg)
			for range callers {
				done.Go(func() {
					for range each {
						begun := time.Now()
						lease, err := l.Acquire(t.Context(), "contended")
						if err != nil {
							t.Errorf("acquire: %v", err)
							return
						}
						h.add(begun, time.Now(), token(t, lease))
						if err := lease.Release(t.Context()); err != nil {
							t.Errorf("release: %v", err)
						}
					}
				})
			}
		}
		done.Wait()
		h.check(t, lockers*callers*each)
	})
}

func TestBadInputIsRefusedBeforeAnythingIsSent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 1)
		l := locker(t, cfg)
		for _, c := range []struct {
			name, resource string
			opts           []lock.AcquireOption
			field          string
		}{
			{"empty resource", "", nil, "resource"},
			{"long resource", strings.Repeat("r", 513), nil, "resource"},
			{"control character", "a\nb", nil, "resource"},
			{"invalid UTF-8", "a\xff", nil, "resource"},
			{"pattern", "a*", nil, "resource"},
			{"zero ttl", "r", []lock.AcquireOption{lock.WithTTL(0)}, "ttl"},
			{"negative ttl", "r", []lock.AcquireOption{lock.WithTTL(-time.Second)}, "ttl"},
			{"tiny ttl", "r", []lock.AcquireOption{lock.WithTTL(leasing.MinTTL - time.Millisecond)}, "ttl"},
			{"ttl over the maximum", "r", []lock.AcquireOption{lock.WithTTL(24*time.Hour + time.Millisecond)}, "ttl"},
			{"long holder", "r", []lock.AcquireOption{lock.WithHolder(strings.Repeat("h", 257))}, "holder"},
			{"holder of two lines", "r", []lock.AcquireOption{lock.WithHolder("a\nb")}, "holder"},
			{"holder with a zero byte", "r", []lock.AcquireOption{lock.WithHolder("a\x00b")}, "holder"},
			{"holder in no encoding", "r", []lock.AcquireOption{lock.WithHolder("a\xff")}, "holder"},
			{"keep-alive without a cap", "r", []lock.AcquireOption{lock.WithKeepAlive(lock.KeepAlive{})}, "keep-alive"},
		} {
			for name, acquire := range map[string]func(context.Context, string, ...lock.AcquireOption) (*lock.Lease, error){
				"acquire": l.Acquire, "try": l.TryAcquire,
			} {
				_, err := acquire(t.Context(), c.resource, c.opts...)
				if invalid, ok := errors.AsType[*fence.InvalidError](err); !ok || invalid.Field != c.field {
					t.Errorf("%s, %s: got %v; want an InvalidError of %q", c.name, name, err, c.field)
				}
			}
		}
		synctest.Wait()
		if n := nodes[0].Connections(); n != 0 {
			t.Errorf("%d connections were made", n)
		}
	})
}

func TestTTLOverTheNodesMaximumIsRefusedByTheScripts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := inMemory(t, 3)
		started(t, cfg)
		cfg.MaxTTL = time.Hour // longer than the nodes allow
		l := locker(t, cfg)
		_, err := l.TryAcquire(t.Context(), "r", lock.WithTTL(2*time.Minute))
		var invalid *fence.InvalidError
		if !errors.As(err, &invalid) || invalid.Field != "ttl" {
			t.Fatalf("acquire: %v", err)
		}
		lease := leased(t, l, "r", lock.WithTTL(time.Minute))
		if err := lease.Extend(t.Context(), 2*time.Minute); !errors.As(err, &invalid) {
			t.Fatalf("extend: %v", err)
		}
		if _, err := lease.Grant(); err != nil {
			t.Fatalf("a refused extension ended the lease: %v", err)
		}
	})
}

func TestAcquireWaitsUntilTheLeaseExpires(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := inMemory(t, 3)
		l := started(t, cfg)
		first := leased(t, l, "r")
		begun := time.Now()
		_, err := l.Acquire(t.Context(), "r")
		must(t, err)
		if late := time.Since(begun) - lock.DefaultTTL; late < 0 || late > 10*time.Millisecond {
			t.Errorf("acquired %v after the lock's end", late)
		}
		if cause := context.Cause(first.Context()); !errors.Is(cause, lock.ErrLost) {
			t.Errorf("cause %v", cause)
		}
	})
}

// Connecting takes several messages. Their answers are signs of life.
func TestANodeThatAnswersIsNotSilentWhileALockerConnects(t *testing.T) {
	t.Parallel()
	groups(t, []int{1, 3}, func(t *testing.T, cfg lock.Config, nodes []*memredis.Node) {
		started(t, cfg)
		for _, n := range nodes {
			n.Replies.Delay(func() time.Duration { return lock.DefaultNodeTimeout * 2 / 5 })
		}
		leased(t, locker(t, cfg), "r")
	})
}

func TestANodeThatWasNeverAdmittedGrantsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := inMemory(t, 3)
		_, err := locker(t, cfg).TryAcquire(t.Context(), "r")
		if !errors.Is(err, lock.ErrNoQuorum) || !errors.Is(err, lock.ErrQuarantined) {
			t.Fatalf("got %v", err)
		}
	})
}

// history records acquisitions and checks them.
type history struct {
	mu      sync.Mutex
	entries []torture.Hold
}

var clockStart = time.Now()

func holdOf(begun, done time.Time, token fence.Token) torture.Hold {
	return torture.Hold{Asked: begun.Sub(clockStart), From: done.Sub(clockStart), Token: token}
}

func (h *history) add(begun, done time.Time, token fence.Token) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.entries = append(h.entries, holdOf(begun, done, token))
}

// check fails the test on a duplicate token, and on a token that is not lower than that of an acquisition which began
// after this one completed.
func (h *history) check(t *testing.T, want int) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.entries) != want {
		t.Errorf("%d acquisitions; want %d", len(h.entries), want)
	}
	duplicates, inversions := torture.Tokens(h.entries)
	if duplicates+inversions > 0 {
		t.Errorf("%d duplicate tokens and %d inversions in %d acquisitions", duplicates, inversions, len(h.entries))
	}
}

func TestManyCallersOnManyResourcesShareTheirRoundTrips(t *testing.T) {
	t.Parallel()
	groups(t, []int{1, 3}, func(t *testing.T, cfg lock.Config, nodes []*memredis.Node) {
		const callers, resources, each = 48, 16, 6
		l := started(t, cfg)
		requests := slowly(nodes, 10*time.Millisecond)
		histories := make([]history, resources)
		var done sync.WaitGroup
		for i := range callers {
			h := &histories[i%resources]
			done.Go(func() {
				for range each {
					begun := time.Now()
					lease, err := l.Acquire(t.Context(), fmt.Sprintf("r/%d", i%resources))
					if err != nil {
						t.Errorf("acquire: %v", err)
						return
					}
					h.add(begun, time.Now(), token(t, lease))
					if err := lease.Release(t.Context()); err != nil {
						t.Errorf("release: %v", err)
					}
				}
			})
		}
		done.Wait()
		for i := range histories {
			histories[i].check(t, callers/resources*each)
		}
		if n, calls := int(requests.Load())/len(nodes), 2*callers*each; n > calls/4 {
			t.Errorf("%d requests to a node for %d calls", n, calls)
		}
	})
}

func TestACallerThatGivesUpLetsTheNextOneMove(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := inMemory(t, 3)
		l := started(t, cfg)
		holder := leased(t, l, "r")
		ctx, cancel := context.WithCancel(t.Context())
		first, second, third := waiting(ctx, l, "r"), waiting(ctx, l, "r"), waiting(t.Context(), l, "r")
		cancel()
		for _, gone := range []<-chan outcome{first, second} {
			if err := (<-gone).err; !errors.Is(err, context.Canceled) || !errors.Is(err, lock.ErrHeld) {
				t.Errorf("got %v", err)
			}
		}
		must(t, holder.Release(t.Context()))
		if next := <-third; next.err != nil || next.after > 10*time.Millisecond {
			t.Errorf("%v, after %v", next.err, next.after)
		}
	})
}
