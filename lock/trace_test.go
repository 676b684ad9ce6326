package lock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/testenv"
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

func (s *spans) open() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var open []string
	for _, path := range s.begun {
		if s.ended[path] < 1 {
			open = append(open, path)
		}
	}
	return open
}

func TestEachStepOfAnOperationIsTraced(t *testing.T) {
	t.Parallel()
	cfg := shared(t, 3)
	s := &spans{ended: make(map[string]int), errs: make(map[string]error)}
	var insideArm string
	cfg.Tracer, cfg.Armer = s, armerFunc(func(ctx context.Context, _ fence.Arming) error {
		insideArm, _ = ctx.Value(spanKey{}).(string)
		return nil
	})
	l := started(t, cfg)
	lease, err := tryAcquire(t, l, "r")
	must(t, err)
	must(t, lease.Extend(t.Context(), time.Minute))
	if _, err := tryAcquire(t, l, "r"); !errors.Is(err, lock.ErrHeld) {
		t.Fatal(err)
	}
	testenv.Paced(t, 50*time.Millisecond, func(patience time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if _, err := l.Acquire(ctx, "r"); !errors.Is(err, lock.ErrHeld) {
			return fmt.Errorf("it had not found that it is held: %w", err)
		}
		return nil
	})
	release(t, lease)
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
	eventually(t, 10*time.Second, "all steps have ended", func() bool { return len(s.open()) == 0 })
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
}

type armerFunc func(context.Context, fence.Arming) error

func (f armerFunc) Arm(ctx context.Context, a fence.Arming) error { return f(ctx, a) }

// Without an Armer, counters that differ need a second phase.
func TestConfirmIsTraced(t *testing.T) {
	t.Parallel()
	cfg := shared(t, 3)
	s := &spans{ended: make(map[string]int), errs: make(map[string]error)}
	cfg.Tracer = s
	l := started(t, cfg)
	release(t, acquire(t, l, "r"))
	free(t, l, "r")
	// In some try all nodes answer before the decision. Then one node is ahead of the others.
	c := client(t, cfg.Nodes[0].Addr)
	eventually(t, 20*time.Second, "a second phase", func() bool {
		must(t, c.HIncrBy(t.Context(), cfg.KeyPrefix+":h", "c:r", 5).Err())
		release(t, acquire(t, l, "r"))
		return s.count("acquire/attempt/confirm") > 0
	})
	eventually(t, 10*time.Second, "all steps have ended", func() bool { return len(s.open()) == 0 })
}
