package client

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/fence/clock/clocktest"
)

// slow is a gateway that takes a while for each answer, and whose first answers are lost. Its leases last for 30 s from
// the request's arrival.
type slow struct {
	takes time.Duration
	loses int
	final bool // no renewal makes a lease last longer
}

func (s *slow) RoundTrip(r *http.Request) (*http.Response, error) {
	select {
	case <-time.After(s.takes):
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	if s.loses--; s.loses >= 0 {
		return nil, io.EOF
	}
	body := fmt.Sprintf(`{"resource":"a","token":"7","ttl_ms":30000,"elapsed_ms":1000,"valid_ms":29000,"final":%t}`, s.final)
	if strings.HasSuffix(r.URL.Path, "/all") {
		body = `{"leases":[` + body + `,` + body + `]}`
	}
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
}

// given are the requests that give a lease a deadline.
var given = map[string]func(context.Context, *Client) ([]Deadline, error){
	"acquired": func(ctx context.Context, c *Client) ([]Deadline, error) {
		lease, err := c.Acquire(ctx, AcquireRequest{Resource: "a", TTL: 30 * time.Second})
		return []Deadline{lease.Deadline}, err
	},
	"acquired together": func(ctx context.Context, c *Client) ([]Deadline, error) {
		leases, err := c.AcquireAll(ctx, []string{"a", "b"}, AcquireRequest{TTL: 30 * time.Second})
		var all []Deadline
		for _, lease := range leases {
			all = append(all, lease.Deadline)
		}
		return all, err
	},
	"renewed": func(ctx context.Context, c *Client) ([]Deadline, error) {
		d, err := c.Renew(ctx, "handle", 30*time.Second)
		return []Deadline{d}, err
	},
}

// happens is what is done to a machine's clock, some time after the request is sent.
type happens struct {
	after time.Duration
	to    func(*clocktest.Clock)
}

// wantLeft checks how long the leases of a gateway have left right after the answer, and then each time some time later.
func wantLeft(t *testing.T, s slow, h happens, later time.Duration, want ...time.Duration) {
	t.Helper()
	for name, ask := range given {
		synctest.Test(t, func(t *testing.T) {
			gateway, machine := s, clocktest.New()
			c, err := New(Config{URL: "http://gateway.invalid", HTTPClient: &http.Client{Transport: &gateway}, Clock: machine.Clock})
			if err != nil {
				t.Fatal(err)
			}
			if h.to != nil {
				time.AfterFunc(h.after, func() { h.to(machine) })
				synctest.Wait()
			}
			deadlines, err := ask(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range want {
				for _, d := range deadlines {
					if left := d.Left(); left != want {
						t.Errorf("%s: %v are left, want %v", name, left, want)
					}
				}
				<-time.After(later)
			}
		})
	}
}

func TestADeadlineCountsFromBeforeTheRequest(t *testing.T) {
	t.Parallel()
	wantLeft(t, slow{}, happens{}, 31*time.Second, 30*time.Second, -time.Second)
	wantLeft(t, slow{takes: 10 * time.Second}, happens{}, 20*time.Second, 20*time.Second, 0)
}

func TestADeadlineCountsFromBeforeTheRequestThatIsAnswered(t *testing.T) {
	t.Parallel()
	wantLeft(t, slow{takes: 4 * time.Second, loses: 2}, happens{}, 0, 26*time.Second)
}

// A lease that has reached the gateway's limit says so.
func TestADeadlineThatNoRenewalMovesIsFinal(t *testing.T) {
	t.Parallel()
	for _, final := range []bool{false, true} {
		for name, ask := range given {
			synctest.Test(t, func(t *testing.T) {
				c, err := New(Config{URL: "http://gateway.invalid", HTTPClient: &http.Client{Transport: &slow{final: final}}})
				if err != nil {
					t.Fatal(err)
				}
				deadlines, err := ask(t.Context(), c)
				for _, d := range deadlines {
					if err != nil || d.Final != final {
						t.Errorf("%s: final: %t, want %t, %v", name, d.Final, final, err)
					}
				}
			})
		}
	}
}

func TestALeaseEndsByAClockThatRunsThroughSuspensions(t *testing.T) {
	t.Parallel()
	const s = time.Second
	suspend := func(d time.Duration) func(*clocktest.Clock) { return func(c *clocktest.Clock) { c.Suspend(d) } }
	set := func(d time.Duration) func(*clocktest.Clock) { return func(c *clocktest.Clock) { c.Set(d) } }
	for name, test := range map[string]struct {
		happens happens
		want    []time.Duration // after an answer that takes 4 s, and 10 s later
	}{
		"nothing happens":                        {happens{}, []time.Duration{26 * s, 16 * s}},
		"a suspension of 15 s":                   {happens{6 * s, suspend(15 * s)}, []time.Duration{26 * s, s}},
		"a suspension past the end":              {happens{6 * s, suspend(time.Hour)}, []time.Duration{26 * s, 16*s - time.Hour}},
		"a suspension while the answer travels":  {happens{2 * s, suspend(15 * s)}, []time.Duration{11 * s, s}},
		"a suspension before":                    {happens{0, suspend(time.Hour)}, []time.Duration{26 * s, 16 * s}},
		"the wall clock is set":                  {happens{6 * s, set(time.Hour)}, []time.Duration{26 * s, 16 * s}},
		"the wall clock is set back":             {happens{6 * s, set(-time.Hour)}, []time.Duration{26 * s, 16 * s}},
		"it is set back while the answer is due": {happens{2 * s, set(-time.Hour)}, []time.Duration{26 * s, 16 * s}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wantLeft(t, slow{takes: 4 * s}, test.happens, 10*s, test.want...)
		})
	}
}
