package runner_test

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/runner"
)

func TestTheExitCodeIsPassedOn(t *testing.T) {
	t.Parallel()
	for script, want := range map[string]int{"exit 7": 7, "kill -KILL $$": 137} {
		if got := run(t, &gateway{ttl: time.Minute}, script); got.ExitCode != want || got.Ended {
			t.Errorf("%q: got %+v, want exit code %d", script, got.Result, want)
		}
	}
}

// A third of a lease is over when it is renewed. After a renewal that failed, it is tried again each twelfth.
func TestTheLeaseIsRenewedWhileTheCommandRuns(t *testing.T) {
	t.Parallel()
	const s = time.Second
	for name, tc := range map[string]struct {
		renew func(g *gateway, w http.ResponseWriter, r *http.Request, n int32)
		said  int             // lines
		want  []time.Duration // from the command's start: the renewals, and the last one after its end
	}{
		"each is answered": {
			func(g *gateway, w http.ResponseWriter, _ *http.Request, _ int32) { g.extend(w) },
			0,
			[]time.Duration{10 * s, 20 * s, 30 * s, 40 * s, 50 * s, 60 * s, 70 * s, 80 * s, 90 * s, 94 * s},
		},
		"each is answered late": {
			func(g *gateway, w http.ResponseWriter, _ *http.Request, _ int32) {
				<-time.After(1900 * time.Millisecond)
				g.extend(w)
			},
			0,
			[]time.Duration{10 * s, 20 * s, 30 * s, 40 * s, 50 * s, 60 * s, 70 * s, 80 * s, 90 * s, 94 * s},
		},
		"two fail": {
			func(g *gateway, w http.ResponseWriter, _ *http.Request, n int32) {
				if n <= 2 {
					unavailable(w)
					return
				}
				g.extend(w)
			},
			1,
			[]time.Duration{10 * s, 12500 * time.Millisecond, 15 * s, 25 * s, 35 * s, 45 * s, 55 * s, 65 * s, 75 * s, 85 * s, 94 * s},
		},
		"one has no answer": { // as on a silently cut connection
			func(g *gateway, w http.ResponseWriter, r *http.Request, n int32) {
				if n == 1 {
					<-r.Context().Done()
					return
				}
				g.extend(w)
			},
			1,
			[]time.Duration{10 * s, 16250 * time.Millisecond, 26250 * time.Millisecond, 36250 * time.Millisecond, 46250 * time.Millisecond, 56250 * time.Millisecond, 66250 * time.Millisecond, 76250 * time.Millisecond, 86250 * time.Millisecond, 94 * s},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := &gateway{ttl: 30 * s, portless: true}
				began := time.Now()
				var mu sync.Mutex
				var renewed []time.Duration
				g.renew = func(w http.ResponseWriter, r *http.Request, n int32) {
					mu.Lock()
					renewed = append(renewed, time.Since(began))
					mu.Unlock()
					tc.renew(g, w, r, n)
				}
				command := &runner.Command{Runs: 94 * s, Code: 5}
				cfg, said := inBubble(t, g, g.ttl)
				got, err := command.Run(t.Context(), t, cfg)
				if err != nil || got.ExitCode != 5 || got.Ended || got.Lost != nil || len(command.Signals) != 0 || g.released.Load() != 1 {
					t.Errorf("got %+v and %v, %q, %d releases; want an undisturbed command and one release", got, err, command.Signals, g.released.Load())
				}
				if !slices.Equal(renewed, tc.want) {
					t.Errorf("renewed at %v, want %v", renewed, tc.want)
				}
				if said := said(); len(said) != tc.said || tc.said == 1 && !strings.Contains(said[0], "could not renew the lease on orders/10 01, which ends in ") {
					t.Errorf("said %q, want %d lines", said, tc.said)
				}
			})
		})
	}
}

func TestACommandWhoseLeaseCannotBeRenewedEndsBeforeItsLeaseIsReleased(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := &gateway{ttl: 30 * time.Second, portless: true}
		g.renew = func(w http.ResponseWriter, _ *http.Request, _ int32) { unavailable(w) }
		command := new(runner.Command)
		g.release = func() {
			if want := []string{"terminated after 22.4s", "killed after 29.9s"}; !slices.Equal(command.Signals, want) {
				t.Errorf("released after %q, want %q", command.Signals, want)
			}
		}
		cfg, said := inBubble(t, g, g.ttl)
		got, err := command.Run(t.Context(), t, cfg)
		if err != nil || got.ExitCode != 137 || !got.Ended || !got.Killed || got.Lost == nil || got.LostOf.Resource != "orders/10 01" || g.released.Load() != 1 {
			t.Errorf("got %+v, %v and %d releases, want it killed, and one release", got, err, g.released.Load())
		}
		for i, want := range []string{
			"could not renew the lease on orders/10 01, which ends in 20s: no quorum of Redis",
			"the lease on orders/10 01 ends in 7.6s, it could not be renewed in time: sent TERM to the command",
			"the command, or what it started, went on after TERM: sent KILL",
		} {
			if said := said(); len(said) != 3 || said[i] != want {
				t.Errorf("said %q, want %q", said, want)
			}
		}
	})
}

// The lease has a minute, and is asked to last for 30 s each time.
func TestALeaseThatMayLastNoLongerSaysSo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g, began := &gateway{ttl: 30 * time.Second, portless: true}, time.Now()
		g.renew = func(w http.ResponseWriter, _ *http.Request, _ int32) {
			left := time.Minute - time.Since(began)
			_, _ = fmt.Fprintf(w, `{"valid_ms":%d,"final":%t}`, min(g.ttl, left).Milliseconds(), left <= g.ttl)
		}
		command := new(runner.Command)
		cfg, said := inBubble(t, g, g.ttl)
		got, err := command.Run(t.Context(), t, cfg)
		if want := []string{"terminated after 52.4s", "killed after 59.9s"}; err != nil || !slices.Equal(command.Signals, want) || got.Lost == nil {
			t.Errorf("got %+v, %v and %q, want %q", got, err, command.Signals, want)
		}
		const want = "the lease on orders/10 01 ends in 7.6s, the gateway lets no lease last longer (serve --max-lease): sent TERM to the command"
		if said := said(); len(said) != 2 || said[0] != want {
			t.Errorf("said %q, want %q", said, want)
		}
	})
}

// In a bubble the watch decides when a command gets which signal. Here are its processes, and what becomes of them.
func TestACommandEndsWithAllThatItStartedWhenItsLeaseIsOver(t *testing.T) {
	t.Parallel()
	const lasts = `echo ready; i=0; while [ $((i += 1)) -lt 600 ]; do sleep 0.1; done; echo lasted`
	for name, c := range map[string]struct {
		script string
		code   int
		killed bool
		output string
	}{
		"obeys TERM":             {`trap 'echo cleaned; exit 3' TERM; ` + lasts, 3, false, "ready\ncleaned\n"},
		"ignores TERM":           {`trap '' TERM; ` + lasts, 137, true, "ready\n"},
		"its child ignores TERM": {`sh -c "trap '' TERM; $LASTS" & wait`, 143, true, "ready\n"}, // and holds the output open
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := brief()
			got := run(t, g, c.script, "LASTS="+lasts)
			if got.Lost == nil || !got.Ended || got.Killed != c.killed || got.ExitCode != c.code || got.stdout != c.output || g.released.Load() != 1 {
				t.Errorf("got %+v, %q and %d releases, want exit code %d, killed: %t", got.Result, got.stdout, g.released.Load(), c.code, c.killed)
			}
			if problem, ok := errors.AsType[*client.Problem](got.Lost); !c.killed && (!ok || problem.Detail != "the lease is over") {
				t.Errorf("it is lost by %v", got.Lost)
			}
		})
	}
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
