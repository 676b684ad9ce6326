package lock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
)

func TestAcquireGivesARisingTokenAndOneHolder(t *testing.T) {
	t.Parallel()
	backends(t, []int{1, 3, 5}, func(t *testing.T, cfg lock.Config) {
		l := started(t, cfg)
		var last fence.Token
		for range 20 {
			lease := acquire(t, l, "orders/1001", lock.WithHolder("worker-a"))
			grant, err := lease.Grant()
			if err != nil {
				t.Fatal(err)
			}
			if grant.Token <= last || grant.Seal.IsZero() || grant.Resource != "orders/1001" {
				t.Fatalf("grant %v after token %d", grant, last)
			}
			last = grant.Token
			_, err = tryAcquire(t, l, "orders/1001")
			var held *leasing.HeldError
			if !errors.As(err, &held) || held.Holder != "worker-a" || held.RetryAfter <= 0 || held.RetryAfter > lock.DefaultTTL {
				t.Fatalf("second acquisition: %v (%+v)", err, held)
			}
			release(t, lease)
			if _, err := lease.Grant(); !errors.Is(err, lock.ErrReleased) {
				t.Fatalf("grant after release: %v", err)
			}
		}
		if last > 60 {
			t.Errorf("20 serial acquisitions ended at token %d: counters run away", last)
		}
	})
}

func TestTokensAreUniqueAndRiseUnderConcurrency(t *testing.T) {
	t.Parallel()
	backends(t, []int{1, 3, 5}, func(t *testing.T, cfg lock.Config) {
		const lockers, callers, each = 2, 4, 12
		ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
		defer cancel()
		var h history
		var done sync.WaitGroup
		for i := range lockers {
			l := locker(t, cfg)
			if i == 0 {
				initialise(t, l)
			}
			for range callers {
				done.Go(func() {
					for range each {
						begun := time.Now()
						lease, err := l.Acquire(ctx, "contended", lock.WithTTL(time.Minute))
						if err != nil {
							t.Errorf("acquire: %v", err)
							return
						}
						h.add(begun, time.Now(), token(t, lease))
						if err := lease.Release(ctx); err != nil {
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
	l := started(t, shared(t, 1)) // MaxTTL 5 min
	cases := []struct {
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
		{"tiny ttl", "r", []lock.AcquireOption{lock.WithTTL(time.Millisecond)}, "ttl"},
		{"ttl over the maximum", "r", []lock.AcquireOption{lock.WithTTL(5*time.Minute + time.Millisecond)}, "ttl"},
		{"long holder", "r", []lock.AcquireOption{lock.WithHolder(strings.Repeat("h", 257))}, "holder"},
		{"holder of two lines", "r", []lock.AcquireOption{lock.WithHolder("a\nb")}, "holder"},
		{"holder with a zero byte", "r", []lock.AcquireOption{lock.WithHolder("a\x00b")}, "holder"},
		{"holder in no encoding", "r", []lock.AcquireOption{lock.WithHolder("a\xff")}, "holder"},
	}
	for _, c := range cases {
		for name, acquire := range map[string]func(context.Context, string, ...lock.AcquireOption) (*lock.Lease, error){
			"acquire": l.Acquire, "try": l.TryAcquire,
		} {
			_, err := acquire(t.Context(), c.resource, c.opts...)
			var invalid *fence.InvalidError
			if !errors.As(err, &invalid) || invalid.Field != c.field {
				t.Errorf("%s, %s: got %v; want an InvalidError of %q", c.name, name, err, c.field)
			}
		}
	}
}

func TestTTLOverTheNodesMaximumIsRefusedByTheScripts(t *testing.T) {
	t.Parallel()
	backends(t, []int{3}, func(t *testing.T, cfg lock.Config) {
		cfg.MaxTTL = time.Minute
		started(t, cfg)
		cfg.MaxTTL = time.Hour // longer than the nodes allow
		l := locker(t, cfg)
		_, err := tryAcquire(t, l, "r", lock.WithTTL(2*time.Minute))
		var invalid *fence.InvalidError
		if !errors.As(err, &invalid) || invalid.Field != "ttl" {
			t.Fatalf("acquire: %v", err)
		}
		lease := acquire(t, l, "r", lock.WithTTL(time.Minute))
		if err := lease.Extend(t.Context(), 2*time.Minute); !errors.As(err, &invalid) {
			t.Fatalf("extend: %v", err)
		}
		if _, err := lease.Grant(); err != nil {
			t.Fatalf("a refused extension ended the lease: %v", err)
		}
		release(t, lease)
	})
}

func TestAcquireWaitsUntilTheHolderReleases(t *testing.T) {
	t.Parallel()
	l := started(t, shared(t, 3))
	first := acquire(t, l, "r")
	got := make(chan *lock.Lease, 1)
	go func() {
		lease, err := l.Acquire(t.Context(), "r")
		if err != nil {
			t.Errorf("waiting: %v", err)
		}
		got <- lease
	}()
	release(t, first)
	select {
	case second := <-got:
		if token(t, second) <= first.Ref().Token {
			t.Errorf("token fell")
		}
		release(t, second)
	case <-time.After(10 * time.Second):
		t.Fatal("the waiter never got the lease")
	}
}

func TestAcquireWaitsUntilTheLeaseExpires(t *testing.T) {
	t.Parallel()
	backends(t, []int{3}, func(t *testing.T, cfg lock.Config) {
		l := started(t, cfg)
		first := acquire(t, l, "r", lock.WithTTL(150*time.Millisecond))
		second := acquire(t, l, "r")
		// A timer may fire late on a busy machine; Grant checks the clock.
		if _, err := first.Grant(); !errors.Is(err, lock.ErrLost) {
			t.Error("second holder while the first lease was valid")
		}
		if cause := context.Cause(first.Context()); !errors.Is(cause, lock.ErrLost) {
			t.Errorf("cause %v", cause)
		}
		release(t, second)
	})
}

func TestWaitEndsWithTheCallersContext(t *testing.T) {
	t.Parallel()
	l := started(t, shared(t, 3))
	defer release(t, acquire(t, l, "r", lock.WithHolder("worker-a")))
	testenv.Paced(t, 500*time.Millisecond, func(patience time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		_, err := l.Acquire(ctx, "r")
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v; want HeldError joined with DeadlineExceeded", err)
		}
		var held *leasing.HeldError
		if !errors.As(err, &held) {
			return fmt.Errorf("it had not found that it is held: %w", err)
		}
		if held.Holder != "worker-a" || !lock.Retryable(err) {
			t.Errorf("held by %q, retryable: %v", held.Holder, lock.Retryable(err))
		}
		return nil
	})
}

func TestANodeThatWasNeverAdmittedGrantsNothing(t *testing.T) {
	t.Parallel()
	backends(t, []int{3}, func(t *testing.T, cfg lock.Config) {
		l := locker(t, cfg)
		_, err := tryAcquire(t, l, "r")
		if !errors.Is(err, lock.ErrNoQuorum) || !errors.Is(err, lock.ErrQuarantined) {
			t.Fatalf("got %v", err)
		}
	})
}

func TestClosedLockerRefuses(t *testing.T) {
	t.Parallel()
	l := started(t, shared(t, 3))
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.TryAcquire(t.Context(), "r"); !errors.Is(err, lock.ErrClosed) {
		t.Fatalf("got %v", err)
	}
}

// history records acquisitions and checks them.
type history struct {
	mu      sync.Mutex
	entries []acquisition
}

type acquisition struct {
	begun, done time.Time
	token       fence.Token
}

func (h *history) add(begun, done time.Time, token fence.Token) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.entries = append(h.entries, acquisition{begun, done, token})
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
	duplicates, inversions := verify(h.entries)
	if duplicates+inversions > 0 {
		t.Errorf("%d duplicate tokens and %d inversions in %d acquisitions", duplicates, inversions, len(h.entries))
	}
}

func TestManyCallersOnManyResourcesShareTheirRoundTrips(t *testing.T) {
	t.Parallel()
	backends(t, []int{1, 3}, func(t *testing.T, cfg lock.Config) {
		const callers, each = 48, 6
		l := started(t, cfg)
		ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
		defer cancel()
		histories := make([]history, 16)
		var done sync.WaitGroup
		for i := range callers {
			h := &histories[i%len(histories)]
			resource := fmt.Sprintf("r/%d", i%len(histories))
			done.Go(func() {
				for range each {
					begun := time.Now()
					lease, err := l.Acquire(ctx, resource)
					if err != nil {
						t.Errorf("acquire: %v", err)
						return
					}
					h.add(begun, time.Now(), token(t, lease))
					if err := lease.Release(ctx); err != nil {
						t.Errorf("release: %v", err)
					}
				}
			})
		}
		done.Wait()
		for i := range histories {
			histories[i].check(t, callers/len(histories)*each)
		}
	})
}

func TestCallersOfOneProcessGetTheResourceInTheirOrder(t *testing.T) {
	t.Parallel()
	l := started(t, shared(t, 3))
	holder := acquire(t, l, "r", lock.WithTTL(lock.DefaultMaxTTL))
	const callers = 20
	order := make(chan int, callers)
	var done sync.WaitGroup
	for i := range callers {
		// Wait until it is in line before the next one comes.
		waiting := l.Waiting("r")
		done.Go(func() {
			lease, err := l.Acquire(t.Context(), "r")
			if err != nil {
				t.Error(err)
				return
			}
			order <- i
			lease.ReleaseAsync()
		})
		eventually(t, 10*time.Second, "the caller is in line", func() bool { return l.Waiting("r") == waiting+1 })
	}
	holder.ReleaseAsync()
	done.Wait()
	close(order)
	want := 0
	for i := range order {
		if i != want {
			t.Errorf("caller %d got it as number %d", i, want)
		}
		want++
	}
}

func TestACallerThatGivesUpLetsTheNextOneMove(t *testing.T) {
	t.Parallel()
	l := started(t, shared(t, 3))
	holder := acquire(t, l, "r")
	ctx, cancel := context.WithCancel(t.Context())
	results := make(chan error, 3)
	wait := func(ctx context.Context) {
		lease, err := l.Acquire(ctx, "r")
		if err == nil {
			lease.ReleaseAsync()
		}
		results <- err
	}
	for i, c := range []context.Context{ctx, ctx, t.Context()} {
		go wait(c)
		eventually(t, 10*time.Second, "the caller is in line", func() bool { return l.Waiting("r") == i+1 })
	}
	eventually(t, 10*time.Second, "the first of them knows that it is held, and queues on a node", func() bool {
		ins, err := l.Inspect(t.Context(), "r")
		return err == nil && ins.Waiters == 1
	})
	cancel()
	for range 2 {
		if err := <-results; !errors.Is(err, context.Canceled) || !errors.Is(err, lock.ErrHeld) {
			t.Errorf("got %v", err)
		}
	}
	release(t, holder)
	must(t, <-results)
}
