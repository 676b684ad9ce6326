package runner

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/client"
)

// stubborn is a command that ignores TERM, and records when it got which signal.
type stubborn struct {
	began  time.Time
	got    []string
	exited chan int

	refusal error // the answer to each signal
}

func (s *stubborn) done() <-chan int { return s.exited }
func (s *stubborn) ended() bool      { return false }
func (s *stubborn) groupGone() bool  { return true }

func (s *stubborn) signal(sig syscall.Signal) error {
	s.got = append(s.got, sig.String()+" after "+time.Since(s.began).String())
	if sig == syscall.SIGKILL {
		s.exited <- 137
	}
	return s.refusal
}

// away is a gateway that renews nothing.
type away struct{}

func (away) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusServiceUnavailable, Body: io.NopCloser(strings.NewReader(`{"code":"unavailable","status":503}`))}, nil
}

// The test's own clock isolates the watch's decisions from the machine's load.
func TestTheCommandIsKilledBeforeItsLeaseIsOver(t *testing.T) {
	t.Parallel()
	for ttl, want := range map[time.Duration][]string{
		1500 * time.Millisecond: {"terminated after 1.025s", "killed after 1.4s"},
		10 * time.Second:        {"terminated after 7.4s", "killed after 9.9s"},
		31 * time.Second:        {"terminated after 23.15s", "killed after 30.9s"},
		time.Minute:             {"terminated after 49.9s", "killed after 59.9s"},
	} {
		synctest.Test(t, func(t *testing.T) {
			c, err := client.New(client.Config{URL: "http://gateway.invalid", HTTPClient: &http.Client{Transport: away{}}})
			if err != nil {
				t.Fatal(err)
			}
			command := &stubborn{began: time.Now(), exited: make(chan int, 1)}
			w := newWatch(Config{Client: c, Say: func(string, ...any) {}}, []client.Lease{{Resource: "r", TTL: ttl, Deadline: client.DeadlineAfter(time.Now(), ttl)}})
			w.child = command
			if got := w.untilExit(t.Context()); !got.Ended || got.Lost == nil || !slices.Equal(command.got, want) {
				t.Errorf("of a lease of %v: %q and %+v, want %q", ttl, command.got, got, want)
			}
		})
	}
}

func TestWarningOnceIsAllThatIsDueUnderWarn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, err := client.New(client.Config{URL: "http://gateway.invalid", HTTPClient: &http.Client{Transport: away{}}})
		if err != nil {
			t.Fatal(err)
		}
		var warned []time.Duration
		began := time.Now()
		command := &stubborn{began: began, exited: make(chan int, 1)}
		time.AfterFunc(time.Minute, func() { command.exited <- 0 })
		w := newWatch(Config{Client: c, OnLost: Warn, Say: func(format string, _ ...any) {
			if strings.HasPrefix(format, "WARNING") {
				warned = append(warned, time.Since(began))
			}
		}}, []client.Lease{{Resource: "r", TTL: 10 * time.Second, Deadline: client.DeadlineAfter(began, 10*time.Second)}})
		w.child = command
		if got := w.untilExit(t.Context()); got.Ended || got.Lost == nil || len(command.got) != 0 || !slices.Equal(warned, []time.Duration{9900 * time.Millisecond}) {
			t.Errorf("signals %q, warned at %v, %+v; want one warning after 9.9s", command.got, warned, got)
		}
	})
}

// silentOnce is a gateway whose first answer never arrives, as
// on a silently cut connection. It renews all later requests.
type silentOnce struct{ asked int }

func (s *silentOnce) RoundTrip(r *http.Request) (*http.Response, error) {
	if s.asked++; s.asked == 1 {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(`{"valid_ms":30000}`))}, nil
}

// watched returns what the watch does with a command that runs for a minute, under a lease of 30 s.
func watched(t *testing.T, gateway http.RoundTripper, left time.Duration, prepare func(*watch, *stubborn)) (Result, *stubborn) {
	t.Helper()
	c, err := client.New(client.Config{URL: "http://gateway.invalid", HTTPClient: &http.Client{Transport: gateway}})
	if err != nil {
		t.Fatal(err)
	}
	command := &stubborn{began: time.Now(), exited: make(chan int, 2)}
	ends := time.AfterFunc(time.Minute, func() { command.exited <- 0 })
	defer ends.Stop()
	w := newWatch(Config{Client: c, Say: func(string, ...any) {}}, []client.Lease{{Resource: "r", TTL: 30 * time.Second, Deadline: client.DeadlineAfter(time.Now(), left)}})
	w.child = command
	if prepare != nil {
		prepare(w, command)
	}
	return w.untilExit(t.Context()), command
}

func TestOneRenewalWithoutAnAnswerCostsNoLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		if got, command := watched(t, &silentOnce{}, 30*time.Second, nil); got.Ended || got.Lost != nil || len(command.got) != 0 {
			t.Errorf("got %+v and %q, want an undisturbed command", got, command.got)
		}
	})
}

func TestTheFirstRenewalComesSoonerWhenTheStartTookLong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		renewing := &silentOnce{asked: 1}
		if got, command := watched(t, renewing, 9*time.Second, nil); got.Ended || got.Lost != nil || len(command.got) != 0 {
			t.Errorf("got %+v and %q, want an undisturbed command", got, command.got)
		}
	})
}

// sleeper is a command on a machine that sleeps once: the watch asks for it in the goroutine that owns the leases.
type sleeper struct {
	*stubborn
	sleep func()
}

func (s *sleeper) done() <-chan int {
	if s.sleep != nil && time.Since(s.began) >= time.Second {
		s.sleep()
		s.sleep = nil
	}
	return s.stubborn.done()
}

// The machine sleeps for 18 s of a lease of 30 s, for which its timers stand still.
func TestALeaseIsRenewedAfterASleep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		got, command := watched(t, &silentOnce{asked: 1}, 30*time.Second, func(w *watch, command *stubborn) {
			w.child = &sleeper{command, func() { w.held[0].deadline = client.DeadlineAfter(time.Now(), 11*time.Second) }}
		})
		if got.Ended || got.Lost != nil || len(command.got) != 0 {
			t.Errorf("got %+v and %q, want an undisturbed command", got, command.got)
		}
	})
}

// oneOver is a gateway that renews all leases but the one with this handle, for which it gives one answer.
type oneOver struct {
	handle string
	status int
	body   string
}

func (o oneOver) RoundTrip(r *http.Request) (*http.Response, error) {
	asked, err := io.ReadAll(r.Body)
	if ours := strings.Contains(string(asked), `"`+o.handle+`"`); !ours && strings.HasSuffix(r.URL.Path, "/release") {
		return &http.Response{StatusCode: http.StatusNoContent, Body: http.NoBody}, err
	} else if err != nil || !ours {
		return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(`{"valid_ms":30000}`))}, err
	}
	return &http.Response{StatusCode: o.status, Body: io.NopCloser(strings.NewReader(o.body))}, nil
}

func TestOneLostLeaseOfSeveralEndsTheCommand(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		gateway oneOver
		want    []string
	}{
		"it is another's":     {oneOver{"second", http.StatusGone, `{"code":"lease_lost","status":410}`}, []string{"terminated after 10s", "killed after 17.5s"}},
		"it can't be renewed": {oneOver{"second", http.StatusServiceUnavailable, `{"code":"unavailable","status":503}`}, []string{"terminated after 22.4s", "killed after 29.9s"}},
		"the others are fine": {oneOver{"nobody's", http.StatusGone, ""}, nil},
	} {
		synctest.Test(t, func(t *testing.T) {
			got, command := watched(t, tc.gateway, 30*time.Second, func(w *watch, _ *stubborn) {
				leases := make([]client.Lease, 3)
				for i, handle := range []string{"first", "second", "third"} {
					leases[i] = client.Lease{Resource: handle, Token: 7, Handle: handle, TTL: 30 * time.Second, Deadline: client.DeadlineAfter(time.Now(), 30*time.Second)}
				}
				child := w.child
				*w = *newWatch(w.cfg, leases)
				w.child = child
			})
			over := tc.want != nil
			if got.Ended != over || (got.Lost != nil) != over || over && got.LostOf != (Held{"second", 7}) || !slices.Equal(command.got, tc.want) {
				t.Errorf("%s: got %+v and %q, want %q", name, got, command.got, tc.want)
			}
		})
	}
}

// After the gateway reports that the lease is lost, the command
// has the grace period, but no more than the lease's time.
func TestALeaseThatTheGatewayEndsLeavesTheCommandItsGrace(t *testing.T) {
	t.Parallel()
	revoked := oneOver{"", http.StatusGone, `{"code":"lease_lost","detail":"the lease is lost: its resource was revoked","status":410}`}
	for name, tc := range map[string]struct {
		left time.Duration
		want []string
	}{
		"right after the start":    {30 * time.Second, []string{"terminated after 10s", "killed after 17.5s"}},
		"when the start took long": {9 * time.Second, []string{"terminated after 0s", "killed after 7.5s"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			var said []string
			got, command := watched(t, revoked, tc.left, func(w *watch, _ *stubborn) {
				w.cfg.Say = func(format string, a ...any) { said = append(said, fmt.Sprintf(format, a...)) }
			})
			if !got.Ended || !got.Killed || !slices.Equal(command.got, tc.want) {
				t.Errorf("%s: got %+v and %q, want %q", name, got, command.got, tc.want)
			}
			if len(said) != 2 || !strings.Contains(said[0], "is over, its resource was revoked: sent TERM to the command; KILL follows in ") || !strings.Contains(said[1], "KILL") {
				t.Errorf("%s: said %q", name, said)
			}
		})
	}
}

// slow is a gateway that takes a second for each answer, and has lost the lease with this handle.
type slow struct{ over string }

func (s slow) RoundTrip(r *http.Request) (*http.Response, error) {
	select {
	case <-time.After(time.Second):
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	return oneOver{s.over, http.StatusGone, `{"code":"lease_lost","status":410}`}.RoundTrip(r)
}

// many returns a run's configuration with this gateway, 64 leases of it, and what the run says.
func many(t *testing.T, gateway http.RoundTripper) (cfg Config, leases []client.Lease, said func() []string) {
	t.Helper()
	c, err := client.New(client.Config{URL: "http://gateway.invalid", HTTPClient: &http.Client{Transport: gateway}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 64 {
		name := fmt.Sprintf("r/%02d", i)
		leases = append(leases, client.Lease{Resource: name, Handle: name, TTL: time.Minute, Deadline: client.DeadlineAfter(time.Now(), time.Minute)})
	}
	var mu sync.Mutex
	var lines []string
	say := func(format string, a ...any) {
		mu.Lock()
		defer mu.Unlock()
		lines = append(lines, fmt.Sprintf(format, a...))
	}
	return Config{Client: c, Say: say}, leases, func() []string { return lines }
}

func TestAllLeasesAreConfirmedAndReleasedInTheTimeOfOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, leases, said := many(t, slow{"r/63"})
		w := newWatch(cfg, leases)
		if w.confirm(t.Context()); w.lost == nil || w.lostOf.Resource != "r/63" || len(said()) != 0 {
			t.Errorf("lost %v of %+v, said %q, want the loss of the last lease", w.lost, w.lostOf, said())
		}
		cfg, leases, said = many(t, slow{"nobody's"})
		began := time.Now()
		if release(t.Context(), cfg, leases); time.Since(began) != time.Second || len(said()) != 0 {
			t.Errorf("it took %v, said %q", time.Since(began), said())
		}
	})
}

func TestALeaseThatIsNotConfirmedIsToldOf(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		gateway http.RoundTripper
		want    string
	}{
		"one": {oneOver{"r/07", http.StatusServiceUnavailable, `{"code":"unavailable","status":503}`}, "could not confirm that r/07 was held until the command ended: "},
		"all": {away{}, "could not confirm that r/00, r/01, "},
	} {
		synctest.Test(t, func(t *testing.T) {
			cfg, leases, said := many(t, tc.gateway)
			w := newWatch(cfg, leases)
			if w.confirm(t.Context()); w.lost != nil || len(said()) != 1 || !strings.HasPrefix(said()[0], tc.want) {
				t.Errorf("%s: lost %v, said %q, want one line that begins with %q", name, w.lost, said(), tc.want)
			}
		})
	}
}

// A terminal that closes sends HUP twice, and timeout(1) sends TERM to its child and to the group: each is one request.
func TestSignalsThatComeTogetherAreOne(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		apart time.Duration
		want  []string
	}{
		"at once":          {0, nil},
		"a moment later":   {100 * time.Millisecond, nil},
		"after a thought":  {time.Second, []string{"killed after 1s"}},
		"after a long one": {20 * time.Second, []string{"killed after 20s"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			got, command := watched(t, &silentOnce{asked: 1}, 30*time.Second, func(w *watch, _ *stubborn) {
				signals := make(chan os.Signal, 2)
				w.cfg.Signals = signals
				signals <- os.Interrupt
				time.AfterFunc(tc.apart, func() { signals <- os.Interrupt })
			})
			if got.Ended || !slices.Equal(command.got, tc.want) {
				t.Errorf("%s: got %+v and %q, want %q", name, got, command.got, tc.want)
			}
		})
	}
}

// This process was stopped meanwhile, or the machine slept.
func TestACommandThatEndedByItselfWasNotEnded(t *testing.T) {
	t.Parallel()
	for range 50 { // select picks any ready channel
		synctest.Test(t, func(t *testing.T) {
			got, command := watched(t, away{}, -time.Second, func(_ *watch, command *stubborn) { command.exited <- 3 })
			if got.Ended || got.ExitCode != 3 || got.Lost == nil || len(command.got) != 0 {
				t.Errorf("got %+v and %q, want the command's own end, and a lease that is lost", got, command.got)
			}
		})
	}
}

func TestACommandThatCanNotBeSignalledIsToldOf(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var said strings.Builder
		got, _ := watched(t, away{}, 30*time.Second, func(w *watch, command *stubborn) {
			command.refusal = syscall.EPERM // for example sudo, which runs as another user
			w.cfg.Say = func(format string, a ...any) { _, _ = fmt.Fprintf(&said, format+"\n", a...) }
		})
		if !strings.Contains(said.String(), "could not send TERM to the command: operation not permitted") || strings.Contains(said.String(), ": sent TERM") {
			t.Errorf("said %q", said.String())
		}
		if got.Lost == nil || got.Ended || got.Killed {
			t.Errorf("got %+v, want a lost lease, and a command that nothing was sent to", got)
		}
	})
}
