//go:build unix

package doctor

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// A system call on a network file system that is away returns neither at a deadline nor at Ctrl-C.
func TestAPartThatHangsIsLeftBehind(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		stop  time.Duration // after which doctor is stopped; 0: never
		took  time.Duration
		words string
	}{
		"deadline": {0, 10*time.Second + afterDeadline, "did not answer within 10s"},
		"stopped":  {2 * time.Second, 2*time.Second + afterDeadline, "before doctor was stopped"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { hang(t, c.stop, c.took, c.words) })
		})
	}
}

func hang(t *testing.T, stop, took time.Duration, words string) {
	t.Helper()
	answers := make(chan struct{})
	defer close(answers)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if stop > 0 {
		defer time.AfterFunc(stop, cancel).Stop()
	}
	begun := time.Now()
	findings := examineComponents(ctx, []component{
		{"hangs", "look at it", func(context.Context) []Finding { <-answers; return nil }},
		{"late", "look at it", func(ctx context.Context) []Finding { <-ctx.Done(); return []Finding{ok("late", "reported at the end")} }},
		{"answers", "look at it", func(context.Context) []Finding { return []Finding{ok("answers", "all well")} }},
	}, 10*time.Second)
	if d := time.Since(begun); d != took {
		t.Errorf("it took %s; want %s", d, took)
	}
	want(t, findings, "hangs", Fail, words, "look at it")
	want(t, findings, "late", OK)
	want(t, findings, "answers", OK)
}

func TestEachPartHasACheckThatFailsIfItHangs(t *testing.T) {
	t.Parallel()
	parts := componentsOf(Config{PostgresURL: "postgres://h/d", RedisNodes: nodes("h:1"), GatewayURL: "http://h", BlobDir: "/b"})
	if len(parts) != 5 {
		t.Errorf("%d parts", len(parts))
	}
	for _, p := range parts {
		if p.check == "" || p.do == "" {
			t.Errorf("%+v", p)
		}
	}
}
