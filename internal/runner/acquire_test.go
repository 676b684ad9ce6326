package runner_test

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/runner"
)

// answer is a gateway's answer to a request that asks to wait.
type answer func(w http.ResponseWriter, wait time.Duration)

// answers is a gateway with special answers to the first acquisitions.
type answers struct {
	gateway
	first       []answer
	ports       []answer // the first answers about endpoints
	portAnswers int
	waits       []string // that the acquisitions asked for; the requests are sequential
}

func (a *answers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if a.portAnswers < len(a.ports) && r.URL.Path == "/v1/endpoints" {
		a.portAnswers++
		a.ports[a.portAnswers-1](w, 0)
		return
	}
	if r.URL.Path == "/v1/leases" {
		var body struct{ Wait string }
		_ = json.NewDecoder(r.Body).Decode(&body)
		n := len(a.waits)
		a.waits = append(a.waits, cmp.Or(body.Wait, "0s"))
		if n < len(a.first) {
			wait, _ := time.ParseDuration(body.Wait) // "": no wait
			a.first[n](w, wait)
			return
		}
	}
	a.gateway.ServeHTTP(w, r)
}

func problem(status int, code, detail string) answer {
	return func(w http.ResponseWriter, _ time.Duration) {
		w.WriteHeader(status)
		_, _ = fmt.Fprintf(w, `{"code":%q,"detail":%q,"status":%d}`, code, detail, status)
	}
}

// heldBy waits for as long as it is asked to.
func heldBy(holder string) answer {
	return func(w http.ResponseWriter, wait time.Duration) {
		<-time.After(wait)
		w.WriteHeader(http.StatusConflict)
		_, _ = fmt.Fprintf(w, `{"code":"held","detail":"held by %s","status":409,"holder":%[1]q}`, holder)
	}
}

func cut(http.ResponseWriter, time.Duration) { panic(http.ErrAbortHandler) }

func TestRunWaitsForWhatPasses(t *testing.T) {
	t.Parallel()
	held, own := heldBy("web-1"), heldBy("me")
	away, refused := problem(503, "unavailable", "no quorum"), problem(401, "unauthorized", "no token")
	for name, tc := range map[string]struct {
		first []answer
		ports []answer
		hold  runner.OnHeld
		wait  time.Duration
		asked string        // the waits that the requests ask for
		took  time.Duration // until the command starts, or the error
		want  error
	}{
		"no wait, held":                  {first: []answer{held}, asked: "0s", want: errHeld},
		"no wait, away":                  {first: []answer{away}, asked: "0s", want: errAny},
		"a wait over what is away":       {first: []answer{away, cut, away}, wait: time.Minute, asked: "0s 59.75s 59.7s 59.2s", took: 800 * time.Millisecond},
		"a wait for what stays away":     {first: slices.Repeat([]answer{away}, 99), wait: 20 * time.Second, asked: "0s 19.75s 19.25s 18.25s 16.25s 12.25s 7.25s 2.25s 0s", took: 20 * time.Second, want: errAny},
		"a wait longer than a request":   {first: []answer{held}, wait: 20 * time.Minute, asked: "0s 5m0s"},
		"a longer wait for what is held": {first: slices.Repeat([]answer{held}, 99), wait: 12 * time.Minute, asked: "0s 5m0s 5m0s 1m59.5s", took: 12 * time.Minute, want: errHeld},
		"skip":                           {first: []answer{held}, hold: runner.Skip, asked: "0s", want: runner.ErrSkipped},
		"skip is not for what is away":   {first: []answer{away}, hold: runner.Skip, asked: "0s", want: errAny},
		"skip, of another's":             {first: []answer{away, held}, hold: runner.Skip, wait: time.Minute, asked: "0s 59.75s", took: time.Minute, want: runner.ErrSkipped},
		"skip is not for its own lease":  {first: []answer{away, own}, hold: runner.Skip, wait: time.Minute, asked: "0s 59.75s", took: time.Minute, want: errHeld},
		"wait without end":               {first: []answer{held, away, held, held}, hold: runner.Wait, asked: "0s 5m0s 5m0s 5m0s 5m0s", took: 10*time.Minute + 250*time.Millisecond},
		"a TTL that ran out on the way":  {first: []answer{problem(410, "lease_lost", "the TTL ran out")}, wait: time.Minute, asked: "0s 0s"},
		"no endpoints at first":          {asked: "0s", ports: []answer{away, cut}, took: 300 * time.Millisecond},
		"what no wait helps":             {first: []answer{refused}, hold: runner.Wait, asked: "0s", want: errAny},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				a := &answers{gateway: gateway{ttl: time.Minute, portless: true}, first: tc.first, ports: tc.ports}
				cfg, _ := inBubble(t, a, a.ttl)
				cfg.Acquire.Wait, cfg.Acquire.Holder, cfg.OnHeld = tc.wait, "me", tc.hold
				began, command := time.Now(), &runner.Command{Runs: time.Second}
				_, err := command.Run(t.Context(), t, cfg)
				if (err != nil) != (tc.want != nil) || command.Started != (err == nil) || errors.Is(err, runner.ErrSkipped) != errors.Is(tc.want, runner.ErrSkipped) {
					t.Errorf("got %v, started: %t; want %v", err, command.Started, tc.want)
				}
				if asked := strings.Join(a.waits, " "); asked != tc.asked {
					t.Errorf("asked to wait for %s, want %s", asked, tc.asked)
				}
				if took := time.Since(began) - command.Lasted(); took != tc.took {
					t.Errorf("waited for %v, want %v", took, tc.took)
				}
			})
		})
	}
}

// While a gateway waits it sends nothing, and afterwards not why it waited.
func TestRunSaysAtOnceAndAtLastWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	const general, cause = "No quorum of Redis nodes serves the gateway now.", "No quorum of Redis nodes serves the gateway now: quarantine, 300 s left."
	synctest.Test(t, func(t *testing.T) {
		says := func(w http.ResponseWriter, wait time.Duration) {
			if wait == 0 {
				problem(503, "unavailable", cause)(w, 0)
				return
			}
			<-time.After(wait)
			problem(503, "unavailable", general)(w, 0)
		}
		a := &answers{first: []answer{says, says, says}}
		cfg, said := inBubble(t, a, time.Minute)
		cfg.Acquire.Wait = 30 * time.Second
		began, ended := time.Now(), make(chan error)
		go func() {
			_, err := new(runner.Command).Run(t.Context(), t, cfg)
			ended <- err
		}()
		synctest.Wait()
		if said := said(); len(said) != 1 || said[0] != "waiting: "+cause {
			t.Errorf("said %q at once, want the cause", said)
		}
		if err := <-ended; err == nil || err.Error() != cause || time.Since(began) != cfg.Acquire.Wait {
			t.Errorf("got %v after %v, want the cause after the wait", err, time.Since(began))
		}
		if said, asked := said(), strings.Join(a.waits, " "); len(said) != 1 || asked != "0s 29.75s 0s" {
			t.Errorf("said %q, asked to wait for %s", said, asked)
		}
	})
}

var (
	errHeld = errors.New("held")
	errAny  = errors.New("an error that is not a skip")
)

func TestOnHeldIsOneOfThree(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]runner.OnHeld{"fail": runner.Fail, "skip": runner.Skip, "wait": runner.Wait} {
		if got, err := runner.ParseOnHeld(text); err != nil || got != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	if _, err := runner.ParseOnHeld("queue"); !errors.Is(err, fence.ErrInvalid) {
		t.Errorf("got %v", err)
	}
}
