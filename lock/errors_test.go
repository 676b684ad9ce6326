package lock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/internal/testenv"
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
	l := started(t, shared(t, 3))
	defer release(t, acquire(t, l, "r", lock.WithHolder("worker-a"), lock.WithTTL(10*time.Second)))
	_, err := tryAcquire(t, l, "r")
	var held *leasing.HeldError
	if !errors.As(err, &held) || held.Resource != "r" || held.Holder != "worker-a" || held.RetryAfter <= 0 || held.RetryAfter > 10*time.Second {
		t.Fatalf("%v (%+v)", err, held)
	}
	if text := err.Error(); text != `"r" is held by "worker-a"` {
		t.Error(text)
	}
}

func TestNoQuorumNamesEachNodesCause(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 5, redisserver.Config{})
	started(t, cfg)
	cfg.NodeTimeout = silence
	l := locker(t, cfg)
	must(t, servers[0].Kill())
	freeze(t, servers[1])
	must(t, client(t, servers[2].Addr).FlushAll(t.Context()).Err())
	var err error
	causes := make(map[string]error)
	eventually(t, 30*time.Second, "the node without data answers in time", func() bool { // a round has a second
		_, err = l.TryAcquire(t.Context(), "r")
		var quorum *lock.QuorumError
		if !errors.As(err, &quorum) || quorum.Operation != "acquire" || quorum.Resource != "r" || quorum.Nodes != 5 || quorum.Quorum != 3 {
			t.Fatalf("%v (%+v)", err, quorum)
		}
		clear(causes)
		for _, c := range quorum.Causes {
			causes[c.Node] = c.Err
		}
		return !errors.Is(causes["node-3"], lock.ErrNodeTimeout)
	})
	switch {
	case len(causes) < 3:
		t.Errorf("causes %v", causes)
	case !errors.Is(causes["node-2"], lock.ErrNodeTimeout):
		t.Errorf("the frozen node: %v", causes["node-2"])
	case !errors.Is(causes["node-3"], lock.ErrQuarantined):
		t.Errorf("the node without data: %v", causes["node-3"])
	case causes["node-1"] == nil || errors.Is(causes["node-1"], lock.ErrQuarantined):
		t.Errorf("the dead node: %v", causes["node-1"])
	}
	for _, target := range []error{lock.ErrNoQuorum, lock.ErrQuarantined, lock.ErrNodeTimeout} {
		if !errors.Is(err, target) {
			t.Errorf("%v is not seen in %v", target, err)
		}
	}
	if !strings.Contains(err.Error(), "node-3: ") || !lock.Retryable(err) {
		t.Errorf("%v", err)
	}
}

// Without an Armer nodes are not admitted automatically, so retrying would never succeed. With one, or embedded, they
// are.
func TestNodesThatSomebodyHasToAdmitAreNotTriedAgain(t *testing.T) {
	t.Parallel()
	cfg, armed := shared(t, 3), shared(t, 3)
	cfg.Epochs = &epochs{}
	armed.Armer = &register{}
	for name, c := range map[string]struct {
		cfg  lock.Config
		want bool
	}{"without an Armer": {cfg, false}, "armed": {armed, true}} {
		l := locker(t, c.cfg)
		_, try := tryAcquire(t, l, "r")
		var wait error
		testenv.Paced(t, time.Second, func(pace time.Duration) error {
			short, end := context.WithTimeout(t.Context(), pace)
			defer end()
			_, wait = l.Acquire(short, "r")
			switch waited := errors.Is(wait, context.DeadlineExceeded); {
			case waited && !c.want:
				return fmt.Errorf("%s: it waited, or the nodes were late: %w", name, wait)
			case !waited && c.want:
				t.Errorf("%s: it did not wait: %v", name, wait)
			case !errors.Is(wait, lock.ErrQuarantined):
				return fmt.Errorf("%s: no node said that it is quarantined: %w", name, wait)
			}
			return nil
		})
		for _, err := range []error{try, wait, ping(t, l)} {
			var quorum *lock.QuorumError
			if !errors.As(err, &quorum) || !errors.Is(err, lock.ErrQuarantined) || quorum.NeedsAdmission == c.want || lock.Retryable(err) != c.want {
				t.Errorf("%s: %v; want retryable %v", name, err, c.want)
			}
			if strings.Contains(err.Error(), "Locker.Init") == c.want { // it would mislead a caller that only has to wait
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// Renewals cannot restore what a restart removed from the nodes. So they end with the reason once that is seen, and
// not at the deadline.
func TestRenewalsEndWithTheNodesAdmission(t *testing.T) {
	t.Parallel()
	testenv.Paced(t, 5*time.Second, func(ttl time.Duration) error {
		cfg, servers := own(t, 3, redisserver.Config{})
		l := started(t, cfg)
		ended := make(chan error, 1)
		acquire(t, l, "r", lock.WithTTL(ttl), lock.WithKeepAlive(lock.KeepAlive{For: time.Hour, Ended: func(err error) { ended <- err }}))
		for _, s := range servers {
			must(t, client(t, s.Addr).FlushAll(t.Context()).Err())
		}
		select {
		case err := <-ended:
			if errors.Is(err, lock.ErrLost) && !errors.Is(err, lock.ErrQuarantined) {
				return err // no renewal was in time
			}
			if lock.Retryable(err) || !errors.Is(err, lock.ErrQuarantined) {
				t.Error(err)
			}
		case <-time.After(ttl + 20*time.Second):
			t.Error("it goes on renewing")
		}
		return nil
	})
}

func TestErrorsOfTheContextAreJoined(t *testing.T) {
	t.Parallel()
	l := started(t, shared(t, 3))
	lease := acquire(t, l, "r")
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("the request was given up")
	cancel(why)
	if _, err := l.TryAcquire(ctx, "other"); !errors.Is(err, why) {
		t.Errorf("try: %v", err)
	}
	if _, err := l.Acquire(ctx, "r"); !errors.Is(err, why) {
		t.Errorf("acquire: %v", err)
	}
	// An extension that was cut short may have been carried out.
	if err := lease.Extend(ctx, time.Minute); err != nil && (!errors.Is(err, why) || lock.Retryable(err)) {
		t.Errorf("extend: %v", err)
	}
	release(t, lease)
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
