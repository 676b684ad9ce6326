package lock_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/lock"
)

// spans is a Tracer that records each step with the steps around it, and how often it ended.
type spans struct {
	mu    sync.Mutex
	begun []string
	ended map[string]int
	errs  map[string]error
}

type spanKey struct{}

func (s *spans) Begin(ctx context.Context, step lock.Step) (context.Context, func(error)) {
	path := step.Name
	if step.Node != "" {
		path += ":" + step.Node
	}
	if outer, ok := ctx.Value(spanKey{}).(string); ok {
		path = outer + "/" + path
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begun = append(s.begun, path)
	return context.WithValue(ctx, spanKey{}, path), func(err error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.ended[path]++
		if err != nil {
			s.errs[path] = err
		}
	}
}

func (s *spans) count(path string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, p := range s.begun {
		if p == path {
			n++
		}
	}
	return n
}

// allEndedOnce fails for each step that has not ended, or ended twice.
func (s *spans) allEndedOnce(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	begun := make(map[string]int)
	for _, path := range s.begun {
		begun[path]++
	}
	for path, n := range begun {
		if s.ended[path] != n {
			t.Errorf("%s began %d times and ended %d times", path, n, s.ended[path])
		}
	}
}

func newSpans() *spans { return &spans{ended: make(map[string]int), errs: make(map[string]error)} }

func TestEachStepOfAnOperationIsTraced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := inMemory(t, 3)
		s := newSpans()
		var insideArm string
		cfg.Tracer, cfg.Armer = s, armerFunc{arm: func(ctx context.Context, _ ...fence.Arming) error {
			insideArm, _ = ctx.Value(spanKey{}).(string)
			return nil
		}}
		l := started(t, cfg)
		lease, err := l.TryAcquire(t.Context(), "r")
		must(t, err)
		must(t, lease.Extend(t.Context(), time.Minute))
		if _, err := l.TryAcquire(t.Context(), "r"); !errors.Is(err, lock.ErrHeld) {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if _, err := l.Acquire(ctx, "r"); !errors.Is(err, lock.ErrHeld) {
			t.Fatal(err)
		}
		release(t, lease)
		synctest.Wait()
		for _, want := range []string{
			"acquire/attempt/take/node:node-1", "acquire/attempt/take/node:node-2", "acquire/attempt/take/node:node-3",
			"acquire/attempt/arm", "acquire/wait", "extend", "extend/node:node-3", "release", "release/node:node-1",
		} {
			if s.count(want) == 0 {
				t.Errorf("no word of %s in %q", want, s.begun)
			}
		}
		if insideArm != "acquire/attempt/arm" {
			t.Errorf("the Armer was called inside %q", insideArm)
		}
		s.allEndedOnce(t)
		s.mu.Lock()
		defer s.mu.Unlock()
		if err := s.errs["acquire"]; !errors.Is(err, lock.ErrHeld) {
			t.Errorf("the acquisition that failed ended with %v", err)
		}
		if err := s.errs["extend"]; err != nil {
			t.Errorf("the extension ended with %v", err)
		}
		if i := slices.IndexFunc(s.begun, func(p string) bool { return strings.HasPrefix(p, "node") }); i >= 0 {
			t.Errorf("%s is inside of nothing", s.begun[i])
		}
	})
}

type armerFunc struct {
	anyFence

	arm func(context.Context, ...fence.Arming) error
}

func (f armerFunc) Arm(ctx context.Context, all ...fence.Arming) error { return f.arm(ctx, all...) }

// Without an Armer, counters that differ need a second phase.
func TestConfirmIsTraced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		s := newSpans()
		cfg.Tracer = s
		l := started(t, cfg)
		release(t, acquire(t, l, "r"))
		if n := s.count("acquire/attempt/confirm"); n != 0 {
			t.Errorf("counters that are equal were confirmed %d times", n)
		}
		// The third node answers after the decision, so the quorum is the first, which is ahead, and the second.
		must(t, nodes[0].Client(t).HIncrBy(t.Context(), lock.DefaultKeyPrefix+":h", "c:r", 5).Err())
		nodes[2].Replies.Delay(func() time.Duration { return time.Millisecond })
		lease := acquire(t, l, "r")
		if n := s.count("acquire/attempt/confirm/node:node-2"); n != 1 {
			t.Errorf("the node that was behind was confirmed %d times in %q", n, s.begun)
		}
		if n := s.count("acquire/attempt/confirm"); n != 1 {
			t.Errorf("%d second phases", n)
		}
		if got := token(t, lease); got&(1<<32-1) != 7 {
			t.Errorf("token %d", got)
		}
		release(t, lease)
		time.Sleep(lock.DefaultNodeTimeout)
		synctest.Wait()
		s.allEndedOnce(t)
	})
}
