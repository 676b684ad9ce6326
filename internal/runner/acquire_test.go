package runner_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/runner"
	"github.com/fencegate/fencegate/internal/testenv"
)

// answers is a gateway with special answers to the first acquisitions.
type answers struct {
	gateway
	first  []func(w http.ResponseWriter)
	ports  []func(w http.ResponseWriter) // the first answers about endpoints
	looked int

	mu    sync.Mutex
	waits []string
}

func (a *answers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if a.looked < len(a.ports) && r.URL.Path == "/v1/endpoints" { // the requests are sequential
		a.looked++
		a.ports[a.looked-1](w)
		return
	}
	if r.URL.Path == "/v1/leases" {
		var body struct{ Wait string }
		_ = json.NewDecoder(r.Body).Decode(&body)
		a.mu.Lock()
		n := len(a.waits)
		a.waits = append(a.waits, body.Wait)
		a.mu.Unlock()
		if n < len(a.first) {
			a.first[n](w)
			return
		}
	}
	a.gateway.ServeHTTP(w, r)
}

func problem(status int, code, detail string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		w.WriteHeader(status)
		_, _ = fmt.Fprintf(w, `{"code":%q,"detail":%q,"status":%d}`, code, detail, status)
	}
}

func cut(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err == nil {
		_ = conn.Close()
	}
}

func TestRunWaitsForWhatPasses(t *testing.T) {
	t.Parallel()
	held, away, refused := problem(409, "held", "held by another"), problem(503, "unavailable", "no quorum"), problem(401, "unauthorized", "no token")
	own := func(w http.ResponseWriter) {
		w.WriteHeader(http.StatusConflict)
		_, _ = io.WriteString(w, `{"code":"held","detail":"held by me","status":409,"holder":"me"}`)
	}
	for name, tc := range map[string]struct {
		first []func(http.ResponseWriter)
		hold  runner.OnHeld
		wait  time.Duration
		asked int // the number of requests; 0: any
		want  error
		ports []func(http.ResponseWriter)
	}{
		"no wait, held":                 {first: []func(http.ResponseWriter){held}, asked: 1, want: errHeld},
		"no wait, away":                 {first: []func(http.ResponseWriter){away}, asked: 1, want: errAny},
		"a wait over what is away":      {first: []func(http.ResponseWriter){away, cut, away}, wait: time.Minute, asked: 4},
		"a wait longer than a request":  {first: []func(http.ResponseWriter){held}, wait: 20 * time.Minute, asked: 2},
		"skip":                          {first: []func(http.ResponseWriter){held}, hold: runner.Skip, asked: 1, want: runner.ErrSkipped},
		"skip is not for what is away":  {first: []func(http.ResponseWriter){away}, hold: runner.Skip, asked: 1, want: errAny},
		"skip, of another's":            {first: append([]func(http.ResponseWriter){away}, slices.Repeat([]func(http.ResponseWriter){held}, 200)...), hold: runner.Skip, wait: 400 * time.Millisecond, want: runner.ErrSkipped},
		"skip is not for its own lease": {first: append([]func(http.ResponseWriter){away}, slices.Repeat([]func(http.ResponseWriter){own}, 200)...), hold: runner.Skip, wait: 400 * time.Millisecond, want: errHeld},
		"wait without end":              {first: []func(http.ResponseWriter){held, away, held}, hold: runner.Wait, asked: 4},
		"a TTL that ran out on the way": {first: []func(http.ResponseWriter){problem(410, "lease_lost", "the TTL ran out")}, wait: time.Minute, asked: 2},
		"no endpoints at first":         {asked: 1, ports: []func(http.ResponseWriter){away, cut}},
		"what no wait mends":            {first: []func(http.ResponseWriter){refused}, hold: runner.Wait, asked: 1, want: errAny},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testenv.Paced(t, tc.wait, func(wait time.Duration) error { // a short wait may be over before the first answer
				a := &answers{gateway: gateway{ttl: time.Minute}, first: tc.first, ports: tc.ports}
				var stdout strings.Builder
				_, err := runner.Run(t.Context(), runner.Config{
					Client: clientOf(t, a), Acquire: client.AcquireRequest{Resource: "r", TTL: time.Minute, Wait: wait, Holder: "me"}, OnHeld: tc.hold,
					Command: []string{"echo", "ran"}, Environ: []string{"PATH=/usr/bin:/bin"}, Stdout: &stdout, Stderr: &stdout, Say: t.Logf,
				})
				switch {
				case tc.want == nil && (err != nil || stdout.String() != "ran\n"), tc.want != nil && (err == nil || stdout.String() != ""),
					errors.Is(err, runner.ErrSkipped) != errors.Is(tc.want, runner.ErrSkipped):
					return fmt.Errorf("got %s and %q, want %s", fmt.Sprint(err), stdout.String(), fmt.Sprint(tc.want))
				}
				if tc.asked > 0 && len(a.waits) != tc.asked {
					t.Errorf("asked %d times, want %d", len(a.waits), tc.asked)
				}
				for _, text := range a.waits {
					if d, err := time.ParseDuration(text); text != "" && (err != nil || d > 5*time.Minute) {
						t.Errorf("asked to wait %q", text)
					}
				}
				return nil
			})
		})
	}
}

// While a gateway waits it sends nothing, and afterwards not why it waited.
func TestRunSaysAtOnceAndAtLastWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	const general, cause = "No quorum of Redis nodes serves the gateway now.", "No quorum of Redis nodes serves the gateway now: quarantine, 300 s left."
	testenv.Paced(t, time.Second, func(wait time.Duration) error {
		a := &answers{gateway: gateway{ttl: time.Minute}}
		var patient atomic.Int32
		var waited atomic.Bool
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			var body struct{ Wait string }
			if r.URL.Path == "/v1/leases" {
				_ = json.NewDecoder(r.Body).Decode(&body)
			}
			switch asked, _ := time.ParseDuration(body.Wait); {
			case r.URL.Path != "/v1/leases":
				a.ServeHTTP(w, r)
			case asked > 0:
				patient.Add(1)
				<-time.After(asked)
				waited.Store(true)
				problem(503, "unavailable", general)(w)
			default:
				problem(503, "unavailable", cause)(w)
			}
		}))
		defer server.Close()
		c, err := client.New(client.Config{URL: server.URL, HTTPClient: server.Client()})
		if err != nil {
			t.Fatal(err)
		}
		said := make(chan string, 10)
		_, err = runner.Run(t.Context(), runner.Config{
			Client: c, Acquire: client.AcquireRequest{Resource: "r", TTL: time.Minute, Wait: wait}, Command: []string{"true"}, Environ: []string{"PATH=/usr/bin:/bin"},
			Say: func(format string, a ...any) {
				said <- fmt.Sprintf("%v ", !waited.Load()) + fmt.Sprintf(format, a...)
			},
		})
		if err == nil || err.Error() != cause || patient.Load() != 1 {
			return fmt.Errorf("got %s after %d waits, want the cause after one", fmt.Sprint(err), patient.Load())
		}
		close(said)
		if first := <-said; first != "true waiting: "+cause {
			return fmt.Errorf("said %q, want the cause, at once", first)
		}
		if second, more := <-said; more {
			return fmt.Errorf("said %q, too", second)
		}
		return nil
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
