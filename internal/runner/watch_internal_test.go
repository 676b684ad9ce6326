package runner

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/internal/client"
)

// stubborn is a command that ignores TERM, and writes down when it got which signal.
type stubborn struct {
	began  time.Time
	got    []string
	exited chan int
}

func (s *stubborn) done() <-chan int { return s.exited }
func (s *stubborn) groupGone() bool  { return true }

func (s *stubborn) signal(sig syscall.Signal) {
	s.got = append(s.got, sig.String()+" after "+time.Since(s.began).String())
	if sig == syscall.SIGKILL {
		s.exited <- 137
	}
}

// away is a gateway that renews nothing.
type away struct{}

func (away) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusServiceUnavailable, Body: io.NopCloser(strings.NewReader(`{"code":"unavailable","status":503}`))}, nil
}

// The clock is the test's own: however busy the machine is, what is measured is
// what the watch decides.
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
			w := watch{
				cfg:   Config{Client: c, Say: func(string, ...any) {}},
				lease: client.Lease{Resource: "r", TTL: ttl}, child: command, deadline: client.DeadlineAfter(time.Now(), ttl),
			}
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
		w := watch{
			cfg: Config{Client: c, OnLost: Warn, Say: func(format string, _ ...any) {
				if strings.HasPrefix(format, "WARNING") {
					warned = append(warned, time.Since(began))
				}
			}},
			lease: client.Lease{Resource: "r", TTL: 10 * time.Second}, child: command, deadline: client.DeadlineAfter(began, 10*time.Second),
		}
		if got := w.untilExit(t.Context()); got.Ended || got.Lost == nil || len(command.got) != 0 || !slices.Equal(warned, []time.Duration{9900 * time.Millisecond}) {
			t.Errorf("signals %q, warned at %v, %+v; want one warning after 9.9s", command.got, warned, got)
		}
	})
}
