package runner_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/runner"
	"github.com/fencegate/fencegate/internal/testenv"
)

func TestTheExitCodeIsPassedOn(t *testing.T) {
	t.Parallel()
	for script, want := range map[string]int{"exit 7": 7, "kill -KILL $$": 137} {
		if got := run(t, &gateway{ttl: time.Minute}, runner.Kill, script); got.ExitCode != want || got.Ended {
			t.Errorf("%q: got %+v, want exit code %d", script, got.Result, want)
		}
	}
}

func TestTheLeaseIsRenewedWhileTheCommandRuns(t *testing.T) {
	t.Parallel()
	// The command runs until the fourth renewal, longer than the lease would last without one.
	testenv.Paced(t, 6*time.Second, func(ttl time.Duration) error {
		renewed := filepath.Join(t.TempDir(), "renewed")
		g := &gateway{ttl: ttl}
		g.renew = func(w http.ResponseWriter, n int32) {
			if n == 4 {
				if err := os.WriteFile(renewed, nil, 0o600); err != nil {
					t.Error(err)
				}
			}
			_ = json.NewEncoder(w).Encode(map[string]any{"valid_ms": g.ttl.Milliseconds()})
		}
		got, err := tryRun(t, g, runner.Kill, "while ! test -e '"+renewed+"'; do sleep 0.05; done")
		if err != nil {
			return err
		}
		if got.ExitCode != 0 || got.Ended || got.took < g.ttl {
			return fmt.Errorf("got %+v after %s and %d renewals, want an undisturbed command", got.Result, got.took, g.renewals.Load())
		}
		return nil
	})
}

func TestACommandWhoseLeaseCannotBeRenewedEnds(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"obeys TERM":         "exec sleep 30",
		"ignores TERM":       "trap '' TERM; while :; do sleep 0.05; done",
		"has a child of its": "trap '' TERM; sh -c \"trap '' TERM; while :; do sleep 0.05; done\"",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testenv.Paced(t, 4*time.Second, func(ttl time.Duration) error {
				got, err := tryRun(t, &gateway{ttl: ttl, renew: unavailable}, runner.Kill, script)
				if err != nil {
					return err
				}
				if got.Lost == nil || !got.Ended || got.ExitCode == 0 || got.took >= ttl+busy {
					return fmt.Errorf("got %+v after %s, want it ended by %s", got.Result, got.took, ttl)
				}
				if !strings.Contains(got.said, "no quorum of Redis") {
					return fmt.Errorf("the cause is not said: %q", got.said)
				}
				return nil
			})
		})
	}
}

func TestACommandIsEndedAtOnceWhenItsLeaseIsAnothers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		script string
		code   int
		within int // twelfths of the TTL
	}{
		"obeys TERM":   {"trap 'echo cleaned; exit 3' TERM; while :; do sleep 0.05; done", 3, 4},
		"ignores TERM": {"trap '' TERM; while :; do sleep 0.05; done", 137, 7},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testenv.Paced(t, 6*time.Second, func(ttl time.Duration) error {
				got, err := tryRun(t, &gateway{ttl: ttl, renew: lost}, runner.Kill, c.script)
				var problem *client.Problem
				if err != nil {
					return err
				}
				if !got.Ended || got.ExitCode != c.code || !errors.As(got.Lost, &problem) || got.took > time.Duration(c.within)*ttl/12+busy {
					return fmt.Errorf("got %+v after %s, want TERM at the first renewal, and KILL a quarter of the TTL later", got.Result, got.took)
				}
				if strings.Contains(got.stdout, "cleaned") != (c.code == 3) || !strings.Contains(got.said, "sent TERM") {
					return fmt.Errorf("%q, said %q", got.stdout, got.said)
				}
				return nil
			})
		})
	}
}

func TestWarnLetsTheCommandRun(t *testing.T) {
	t.Parallel()
	// The loss is known after a third of the TTL.
	got := run(t, &gateway{ttl: 9 * time.Second, renew: lost}, runner.Warn, "sleep 4; echo done")
	if got.Ended || got.ExitCode != 0 || got.Lost == nil || !strings.Contains(got.stdout, "done") {
		t.Errorf("got %+v %q, want the command to end by itself", got.Result, got.stdout)
	}
	if strings.Count(got.said, "WARNING") != 1 {
		t.Errorf("want one warning: %q", got.said)
	}
}

func TestWhatTheCommandStartedEndsWithItsLease(t *testing.T) {
	t.Parallel()
	// The command obeys TERM. Its child ignores it, and holds the output open.
	testenv.Paced(t, 4*time.Second, func(ttl time.Duration) error {
		got, err := tryRun(t, &gateway{ttl: ttl, renew: unavailable}, runner.Kill,
			`sh -c "trap '' TERM; while :; do sleep 0.05; done" & wait`)
		if err != nil {
			return err
		}
		if !got.Ended || got.took >= ttl+busy {
			return fmt.Errorf("got %+v after %s, want all of it ended by %s", got.Result, got.took, ttl)
		}
		return nil
	})
}

func TestACommandThatDoesNotExistTakesNoLease(t *testing.T) {
	t.Parallel()
	g := &gateway{ttl: time.Minute}
	cfg := configure(t, g, "")
	cfg.Command = []string{"no-such-command-here"}
	if _, err := runner.Run(t.Context(), cfg); !errors.Is(err, fence.ErrInvalid) || g.acquired.Load() != 0 {
		t.Errorf("got %v and %d leases, want an input error and none", err, g.acquired.Load())
	}
}
