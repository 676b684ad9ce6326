package lock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/memredis"
	"github.com/fencegate/fencegate/lock"
)

func TestRetryableIsWhatMaySucceedByItself(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{&leasing.HeldError{Resource: "r"}, true},
		{errors.Join(&leasing.HeldError{Resource: "r"}, context.DeadlineExceeded), true},
		{&lock.QuorumError{Causes: []*lock.NodeError{{Node: "n", Err: lock.ErrNodeTimeout}}}, true},
		{fmt.Errorf("wrapped: %w", &lock.QuorumError{}), true},
		{fmt.Errorf("wrapped: %w", &lock.QuorumError{NeedsAdmission: true}), false},
		{lock.ErrLost, false},
		{lock.ErrReleased, false},
		{lock.ErrClosed, false},
		{lock.ErrCluster, false},
		{&fence.InvalidError{Field: "ttl"}, false},
		{&fence.NotRaisedError{Resource: "r"}, false},
		{context.Canceled, false},
	} {
		if got := lock.Retryable(c.err); got != c.want {
			t.Errorf("%v: %v", c.err, got)
		}
	}
}

func TestHeldNamesTheHolderAndWhenItEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := inMemory(t, 3)
		l := started(t, cfg)
		lease := acquire(t, l, "r", lock.WithHolder("worker-a"), lock.WithTTL(10*time.Second))
		time.Sleep(3 * time.Second)
		_, err := l.TryAcquire(t.Context(), "r")
		var held *leasing.HeldError
		if !errors.As(err, &held) || held.Resource != "r" || held.Holder != "worker-a" || held.RetryAfter != 7*time.Second {
			t.Fatalf("%v (%+v)", err, held)
		}
		if text := err.Error(); text != `"r" is held by "worker-a"` {
			t.Error(text)
		}
		release(t, lease)
	})
}

func TestNoQuorumNamesEachNodesCause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 5)
		l := started(t, cfg)
		nodes[0].Stop()
		nodes[1].Freeze()
		must(t, nodes[2].Client(t).FlushAll(t.Context()).Err())
		_, err := l.TryAcquire(t.Context(), "r")
		var quorum *lock.QuorumError
		if !errors.As(err, &quorum) || quorum.Operation != "acquire" || quorum.Resource != "r" || quorum.Nodes != 5 || quorum.Quorum != 3 {
			t.Fatalf("%v (%+v)", err, quorum)
		}
		causes := make(map[string]error)
		for _, c := range quorum.Causes {
			causes[c.Node] = c.Err
		}
		switch {
		case len(causes) != 3:
			t.Errorf("causes %v", causes)
		case !errors.Is(causes["node-1"], memredis.ErrDown):
			t.Errorf("the dead node: %v", causes["node-1"])
		case !errors.Is(causes["node-2"], lock.ErrNodeTimeout):
			t.Errorf("the frozen node: %v", causes["node-2"])
		case !errors.Is(causes["node-3"], lock.ErrQuarantined):
			t.Errorf("the node without data: %v", causes["node-3"])
		}
		for _, target := range []error{lock.ErrNoQuorum, lock.ErrQuarantined, lock.ErrNodeTimeout} {
			if !errors.Is(err, target) {
				t.Errorf("%v is not seen in %v", target, err)
			}
		}
		if !strings.Contains(err.Error(), "node-3: ") || !lock.Retryable(err) {
			t.Errorf("%v", err)
		}
		nodes[1].Thaw()
	})
}

// Without an Armer nodes are not admitted automatically, so retrying would never succeed. With one, or embedded, they
// are.
func TestNodesThatSomebodyHasToAdmitAreNotTriedAgain(t *testing.T) {
	t.Parallel()
	for name, armed := range map[string]bool{"without an Armer": false, "armed": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg, _ := inMemory(t, 3)
				if armed {
					cfg.Armer = &register{}
				} else {
					cfg.Epochs = &epochs{}
				}
				l := locker(t, cfg)
				_, try := l.TryAcquire(t.Context(), "r")
				begun := time.Now()
				ctx, end := context.WithTimeout(t.Context(), 10*time.Second)
				defer end()
				_, wait := l.Acquire(ctx, "r")
				switch took := time.Since(begun); {
				case armed && (took != 10*time.Second || !errors.Is(wait, context.DeadlineExceeded)):
					t.Errorf("it waited for %v: %v", took, wait)
				case !armed && took != 0:
					t.Errorf("it waited for %v, and nobody admits the nodes", took)
				}
				_, notReady := l.Ready(t.Context())
				for _, err := range []error{try, wait, notReady} {
					var quorum *lock.QuorumError
					if !errors.As(err, &quorum) || !errors.Is(err, lock.ErrQuarantined) || quorum.NeedsAdmission == armed || lock.Retryable(err) != armed {
						t.Errorf("%v; want retryable %v", err, armed)
					}
					if strings.Contains(err.Error(), "Admin.Init") == armed { // it would mislead a caller that only has to wait
						t.Error(err)
					}
				}
			})
		})
	}
}

// Renewals cannot restore what a restart removed from the nodes. So they end with the reason once that is seen, and
// not at the deadline.
func TestRenewalsEndWithTheNodesAdmission(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		l := started(t, cfg)
		ended := make(chan error, 1)
		lease := acquire(t, l, "r", lock.WithKeepAlive(lock.KeepAlive{For: time.Hour, Ended: func(err error) { ended <- err }}))
		synctest.Wait()
		for _, n := range nodes {
			must(t, n.Client(t).FlushAll(t.Context()).Err())
		}
		begun := time.Now()
		if err := <-ended; lock.Retryable(err) || !errors.Is(err, lock.ErrQuarantined) {
			t.Error(err)
		}
		if took := time.Since(begun); took > lock.DefaultTTL/3 {
			t.Errorf("renewals ended after %v", took)
		}
		if _, err := lease.Grant(); err != nil {
			t.Errorf("before the deadline: %v", err)
		}
	})
}

func TestErrorsOfTheContextAreJoined(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		l := started(t, cfg)
		lease := acquire(t, l, "r")
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("the request was given up")
		extended := make(chan error, 1)
		synctest.Wait()
		for _, n := range nodes {
			n.Replies.Close()
		}
		go func() { extended <- lease.Extend(ctx, time.Minute) }()
		synctest.Wait() // it waits for the answers
		cancel(why)
		if err := <-extended; !errors.Is(err, why) || !errors.Is(err, fence.ErrUnknown) || lock.Retryable(err) {
			t.Errorf("extend: %v", err)
		}
		for _, n := range nodes {
			n.Replies.Open()
		}
		if _, err := l.TryAcquire(ctx, "other"); !errors.Is(err, why) {
			t.Errorf("try: %v", err)
		}
		if _, err := l.Acquire(ctx, "r"); !errors.Is(err, why) {
			t.Errorf("acquire: %v", err)
		}
		release(t, lease)
	})
}

// A node that has not received a release yet names the previous holder, perhaps with a longer TTL than the current
// one.
func TestARefusalNamesTheNewestHolder(t *testing.T) {
	t.Parallel()
	before, now := lock.Refusal{Holder: "before", PTTL: 9000, Floor: 7}, lock.Refusal{Holder: "now", PTTL: 400, Floor: 8}
	for _, order := range [][]lock.Refusal{{before, now}, {now, before}} {
		if holder, pttl := lock.HeldBy(order...); holder != "now" || pttl != 400 {
			t.Errorf("%v: held by %q for %d ms", order, holder, pttl)
		}
	}
	if holder, pttl := lock.HeldBy(now, lock.Refusal{Holder: "now", PTTL: 500, Floor: 8}); holder != "now" || pttl != 500 {
		t.Errorf("the same lease on two nodes: %q for %d ms", holder, pttl)
	}
}
