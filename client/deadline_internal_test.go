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

// wantLeft checks how long the leases of a gateway have left right after the answer, and then each time some time later.
// wall is their wall clock; nil: this machine's.
func wantLeft(t *testing.T, s slow, wall func(time.Time) time.Time, later time.Duration, want ...time.Duration) {
	t.Helper()
	for name, ask := range given {
		synctest.Test(t, func(t *testing.T) {
			gateway := s
			c, err := New(Config{URL: "http://gateway.invalid", HTTPClient: &http.Client{Transport: &gateway}})
			if err != nil {
				t.Fatal(err)
			}
			if wall != nil {
				c.clock = &clock{wall: wall}
			}
			deadlines, err := ask(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range want {
				for _, d := range deadlines {
					if left := d.Remaining(); left != want {
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
	wantLeft(t, slow{}, nil, 31*time.Second, 30*time.Second, -time.Second)
	wantLeft(t, slow{takes: 10 * time.Second}, nil, 20*time.Second, 20*time.Second, 0)
}

func TestADeadlineCountsFromBeforeTheRequestThatIsAnswered(t *testing.T) {
	t.Parallel()
	wantLeft(t, slow{takes: 4 * time.Second, loses: 2}, nil, 0, 26*time.Second)
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
					if err != nil || d.Final() != final {
						t.Errorf("%s: final: %t, want %t, %v", name, d.Final(), final, err)
					}
				}
			})
		}
	}
}

// jump is a wall clock that moves on by d, after some seconds of a bubble.
func jump(after, d time.Duration) func(time.Time) time.Time {
	at := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).Add(after) // a bubble begins in 2000
	return func(t time.Time) time.Time {
		if t = t.Round(0); t.Before(at) {
			return t
		}
		return t.Add(d)
	}
}

func TestALeaseEndsByTheClockOnWhichItIsOverFirst(t *testing.T) {
	t.Parallel()
	const s = time.Second
	for name, test := range map[string]struct {
		wall func(time.Time) time.Time
		want []time.Duration // after an answer that takes 4 s, and 10 s later
	}{
		"both go on":                             {jump(0, 0), []time.Duration{26 * s, 16 * s}},
		"a suspension of 15 s":                   {jump(6*s, 15*s), []time.Duration{26 * s, s}},
		"a suspension past the end":              {jump(6*s, time.Hour), []time.Duration{26 * s, 16*s - time.Hour}},
		"a suspension while the answer travels":  {jump(2*s, 15*s), []time.Duration{11 * s, s}},
		"a suspension before":                    {jump(-s, time.Hour), []time.Duration{26 * s, 16 * s}},
		"the wall clock is set back":             {jump(6*s, -time.Hour), []time.Duration{26 * s, 16 * s}},
		"it is set back while the answer is due": {jump(2*s, -time.Hour), []time.Duration{26 * s, 16 * s}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wantLeft(t, slow{takes: 4 * s}, test.wall, 10*s, test.want...)
		})
	}
}
