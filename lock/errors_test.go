package lock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/lock"
)

func TestRetryableIsWhatMaySucceedByItself(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{&lock.HeldError{Resource: "r"}, true},
		{errors.Join(&lock.HeldError{Resource: "r"}, context.DeadlineExceeded), true},
		{&lock.QuorumError{Causes: []*lock.NodeError{{Node: "n", Err: lock.ErrNodeTimeout}}}, true},
		{fmt.Errorf("wrapped: %w", &lock.QuorumError{}), true},
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
	_, err := l.TryAcquire(t.Context(), "r")
	var held *lock.HeldError
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
	cfg.NodeTimeout = 300 * time.Millisecond
	l := started(t, cfg)
	must(t, servers[0].Kill())
	must(t, servers[1].Freeze())
	must(t, client(t, servers[2].Addr).FlushAll(t.Context()).Err())
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
