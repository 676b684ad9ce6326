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
	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/fence/clock/clocktest"
)

// away is a gateway that renews nothing.
type away struct{}

func (away) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusServiceUnavailable, Body: io.NopCloser(strings.NewReader(`{"code":"unavailable","status":503}`))}, nil
}

// thirty are the leases of 30 s with this name, of which so much time is left.
func thirty(left time.Duration, names ...string) []client.Lease {
	leases := make([]client.Lease, len(names))
	for i, name := range names {
		leases[i] = client.Lease{Resource: name, Token: 7, Handle: name, TTL: 30 * time.Second, Deadline: after(left)}
	}
	return leases
}

// after is a deadline on a clock of its own.
func after(d time.Duration) client.Deadline {
	return client.Deadline{Instant: clock.New().Now().Add(d)}
}

// of returns a client of a gateway, for a bubble.
func of(t *testing.T, gateway http.RoundTripper, on *clocktest.Clock) *client.Client {
	t.Helper()
	c, err := client.New(client.Config{URL: "http://gateway.invalid", HTTPClient: &http.Client{Transport: gateway}, Clock: on.Clock})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// watched returns what the watch does with a command that runs for a minute, under these leases.
func watched(t *testing.T, gateway http.RoundTripper, leases []client.Lease, prepare func(*watch, *Command)) (Result, *Command) {
	t.Helper()
	return watchedOn(t, clocktest.New(), gateway, leases, prepare)
}

// watchedOn is watched on a machine with this clock.
func watchedOn(
	t *testing.T, machine *clocktest.Clock, gateway http.RoundTripper, leases []client.Lease, prepare func(*watch, *Command),
) (Result, *Command) {
	t.Helper()
	for i, lease := range leases {
		leases[i].Deadline.Instant = machine.Now().Add(lease.Deadline.Left())
	}
	command := &Command{Runs: time.Minute}
	w := newWatch(Config{Client: of(t, gateway, machine), Say: func(string, ...any) {}}, leases)
	w.child = command
	command.begin()
	if prepare != nil {
		prepare(w, command)
	}
	return w.untilExit(t.Context()), command
}

func TestTheCommandIsKilledBeforeItsLeaseIsOver(t *testing.T) {
	t.Parallel()
	for ttl, want := range map[time.Duration][]string{
		1500 * time.Millisecond: {"terminated after 1.025s", "killed after 1.4s"},
		10 * time.Second:        {"terminated after 7.4s", "killed after 9.9s"},
		31 * time.Second:        {"terminated after 23.15s", "killed after 30.9s"},
		time.Minute:             {"terminated after 49.9s", "killed after 59.9s"},
	} {
		synctest.Test(t, func(t *testing.T) {
			lease := client.Lease{Resource: "r", TTL: ttl, Deadline: after(ttl)}
			got, command := watched(t, away{}, []client.Lease{lease}, func(_ *watch, c *Command) { c.Runs = 0 })
			if !got.Ended || got.Lost == nil || !slices.Equal(command.Signals, want) {
				t.Errorf("of a lease of %v: %q and %+v, want %q", ttl, command.Signals, got, want)
			}
		})
	}
}

func TestWarningOnceIsAllThatIsDueUnderWarn(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		gateway http.RoundTripper
		want    time.Duration
	}{
		"it can't be renewed": {away{}, 29900 * time.Millisecond},
		"it is another's":     {oneOver{"r", http.StatusGone, `{"code":"lease_lost","status":410}`}, 10 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			var warned []time.Duration
			got, command := watched(t, tc.gateway, thirty(30*time.Second, "r"), func(w *watch, c *Command) {
				w.cfg.OnLost, w.cfg.Say = Warn, func(format string, _ ...any) {
					if strings.HasPrefix(format, "WARNING") {
						warned = append(warned, time.Since(c.began))
					}
				}
			})
			if got.Ended || got.Lost == nil || got.ExitCode != 0 || len(command.Signals) != 0 || !slices.Equal(warned, []time.Duration{tc.want}) {
				t.Errorf("%s: signals %q, warned at %v, %+v; want one warning after %v", name, command.Signals, warned, got, tc.want)
			}
		})
	}
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

func TestOneRenewalWithoutAnAnswerCostsNoLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		if got, command := watched(t, &silentOnce{}, thirty(30*time.Second, "r"), nil); got.Ended || got.Lost != nil || len(command.Signals) != 0 {
			t.Errorf("got %+v and %q, want an undisturbed command", got, command.Signals)
		}
	})
}

func TestTheFirstRenewalComesSoonerWhenTheStartTookLong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		if got, command := watched(t, &silentOnce{asked: 1}, thirty(9*time.Second, "r"), nil); got.Ended || got.Lost != nil || len(command.Signals) != 0 {
			t.Errorf("got %+v and %q, want an undisturbed command", got, command.Signals)
		}
	})
}

// noting is a gateway's transport that notes when the first request comes.
type noting struct {
	http.RoundTripper

	once  sync.Once
	first time.Time
}

func (n *noting) RoundTrip(r *http.Request) (*http.Response, error) {
	n.once.Do(func() { n.first = time.Now() })
	return n.RoundTripper.RoundTrip(r)
}

// Timers stand still while the machine sleeps. The watch looks at the time that is left each quarter of a second.
func TestALeaseIsRenewedAfterASleep(t *testing.T) {
	t.Parallel()
	const sleeps, awake = 1100 * time.Millisecond, 1250 * time.Millisecond // the next look
	for name, tc := range map[string]struct {
		gateway http.RoundTripper
		slept   time.Duration
		want    []string
	}{
		"past a third of the lease":  {&silentOnce{asked: 1}, 18 * time.Second, nil},
		"its answer does not arrive": {&silentOnce{}, 12 * time.Second, nil},
		"nothing renews it":          {away{}, 18 * time.Second, []string{"terminated after 4.4s", "killed after 11.9s"}},
		"up to the grace period":     {away{}, 22 * time.Second, []string{"terminated after 1.25s", "killed after 7.9s"}},
		"past the lease":             {away{}, time.Hour, []string{"killed after 1.25s"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			began, gateway := time.Now(), &noting{RoundTripper: tc.gateway}
			machine := clocktest.New()
			time.AfterFunc(sleeps, func() { machine.Suspend(tc.slept) })
			got, command := watchedOn(t, machine, gateway, thirty(30*time.Second, "r"), nil)
			if over := tc.want != nil; got.Ended != over || (got.Lost != nil) != over || !slices.Equal(command.Signals, tc.want) {
				t.Errorf("%s: got %+v and %q, want %q", name, got, command.Signals, tc.want)
			}
			synctest.Wait()
			if first := gateway.first.Sub(began); first != awake {
				t.Errorf("%s: the gateway was asked after %v, want %v", name, first, awake)
			}
		})
	}
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
			got, command := watched(t, tc.gateway, thirty(30*time.Second, "first", "second", "third"), nil)
			over := tc.want != nil
			if got.Ended != over || (got.Lost != nil) != over || over && got.LostOf != (Lease{"second", 7}) || !slices.Equal(command.Signals, tc.want) {
				t.Errorf("%s: got %+v and %q, want %q", name, got, command.Signals, tc.want)
			}
		})
	}
}

// After the gateway reports that the lease is lost, the command
// has the grace period, but no more than the lease's time.
func TestALeaseThatTheGatewayEndsLeavesTheCommandItsGrace(t *testing.T) {
	t.Parallel()
	revoked := oneOver{"r", http.StatusGone, `{"code":"lease_lost","detail":"the lease is lost: its resource was revoked","status":410}`}
	for name, tc := range map[string]struct {
		left time.Duration
		want []string
	}{
		"right after the start":    {30 * time.Second, []string{"terminated after 10s", "killed after 17.5s"}},
		"when the start took long": {9 * time.Second, []string{"terminated after 0s", "killed after 7.5s"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			var said []string
			got, command := watched(t, revoked, thirty(tc.left, "r"), func(w *watch, _ *Command) {
				w.cfg.Say = func(format string, a ...any) { said = append(said, fmt.Sprintf(format, a...)) }
			})
			if !got.Ended || !got.Killed || !slices.Equal(command.Signals, tc.want) {
				t.Errorf("%s: got %+v and %q, want %q", name, got, command.Signals, tc.want)
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
	for i := range 64 {
		name := fmt.Sprintf("r/%02d", i)
		leases = append(leases, client.Lease{Resource: name, Handle: name, TTL: time.Minute, Deadline: after(time.Minute)})
	}
	var mu sync.Mutex
	var lines []string
	say := func(format string, a ...any) {
		mu.Lock()
		defer mu.Unlock()
		lines = append(lines, fmt.Sprintf(format, a...))
	}
	return Config{Client: of(t, gateway, clocktest.New()), Say: say}, leases, func() []string { return lines }
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
			got, command := watched(t, &silentOnce{asked: 1}, thirty(30*time.Second, "r"), func(w *watch, _ *Command) {
				signals := make(chan os.Signal, 2)
				w.cfg.Signals = signals
				signals <- os.Interrupt
				time.AfterFunc(tc.apart, func() { signals <- os.Interrupt })
			})
			if got.Ended || !slices.Equal(command.Signals, tc.want) {
				t.Errorf("%s: got %+v and %q, want %q", name, got, command.Signals, tc.want)
			}
		})
	}
}

// This process was stopped during the renewal, or the machine slept.
func TestACommandThatEndedByItselfWasNotEnded(t *testing.T) {
	t.Parallel()
	for range 50 { // select picks any ready channel
		for after, name := range map[time.Duration]string{0: "its exit code is there", time.Second: "it is about to come"} {
			synctest.Test(t, func(t *testing.T) {
				got, command := watched(t, away{}, thirty(-time.Second, "r"), func(_ *watch, c *Command) {
					c.dead = true
					if after == 0 {
						c.exited <- 3
						return
					}
					time.AfterFunc(after, func() { c.exited <- 3 })
				})
				if got.Ended || got.ExitCode != 3 || got.Lost == nil || len(command.Signals) != 0 {
					t.Errorf("%s: got %+v and %q, want the command's own end, and a lease that is lost", name, got, command.Signals)
				}
			})
		}
	}
}

func TestACommandThatCanNotBeSignalledIsToldOf(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var said strings.Builder
		got, _ := watched(t, away{}, thirty(30*time.Second, "r"), func(w *watch, c *Command) {
			c.refusal = syscall.EPERM // for example sudo, which runs as another user
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
