package client_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/wire"
)

// group answers for the gateways a, b and c, without a network. It runs on a bubble's clock.
type group struct {
	takes   map[string]time.Duration // until the answer; negative: the gateway hangs
	cut     map[string]bool          // no connection is made
	refuses map[string]bool          // it answers that writes of the old holder are left

	mu    sync.Mutex
	asked []string
}

const hangs = time.Duration(-1)

func (g *group) RoundTrip(req *http.Request) (*http.Response, error) {
	host := req.URL.Hostname()
	g.mu.Lock()
	g.asked = append(g.asked, host)
	g.mu.Unlock()
	trace := httptrace.ContextClientTrace(req.Context())
	if trace != nil && trace.GetConn != nil {
		trace.GetConn(req.URL.Host)
	}
	if g.cut[host] {
		<-req.Context().Done()
		return nil, req.Context().Err()
	}
	if trace != nil && trace.GotConn != nil {
		trace.GotConn(httptrace.GotConnInfo{})
	}
	var answer <-chan time.Time
	if takes := g.takes[host]; takes != hangs {
		answer = time.After(takes)
	}
	select {
	case <-answer:
		status := http.StatusOK
		if strings.HasSuffix(req.URL.Path, "/release") {
			status = http.StatusNoContent
		}
		body := granted
		if g.refuses[host] {
			status, body = http.StatusServiceUnavailable, `{"code":"ZF005","title":"Undrained"}`
		}
		return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader(body)), Request: req}, nil
	case <-req.Context().Done():
		return nil, req.Context().Err()
	}
}

func (g *group) client(t *testing.T, hosts ...string) *client.Client {
	t.Helper()
	c, err := client.New(client.Config{URL: "http://" + strings.Join(hosts, ",http://"), HTTPClient: &http.Client{Transport: g}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// were checks which gateways were asked since the last check.
func (g *group) were(t *testing.T, want string) {
	t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	if got := strings.Join(g.asked, " "); got != want {
		t.Errorf("asked %q, want %q", got, want)
	}
	g.asked = nil
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func renew(ctx context.Context, c *client.Client) error {
	_, err := c.Renew(ctx, "h", 30*time.Second)
	return err
}

// The times are those of fencegate run with a TTL of 30 s.
func TestARequestPassesOnFromAGatewayThatHangs(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		has time.Duration
		ask func(context.Context, *client.Client) error
	}{
		"renewal": {3750 * time.Millisecond, renew},
		"release": {5 * time.Second, func(ctx context.Context, c *client.Client) error { return c.Release(ctx, "h") }},
		"credentials": {1500 * time.Millisecond, func(ctx context.Context, c *client.Client) error {
			_, err := c.Credentials(ctx, wire.CredentialsRequest{Handle: "h"})
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := &group{takes: map[string]time.Duration{"a": hangs}}
				c, began := g.client(t, "a", "b"), time.Now()
				if err := test.ask(within(t, test.has), c); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); took != test.has/2 {
					t.Errorf("took %v of %v", took, test.has)
				}
				if err := test.ask(within(t, test.has), c); err != nil {
					t.Fatal(err)
				}
				g.were(t, "a b b")
			})
		})
	}
}

func TestTheGatewaysLeftShareTheTimeLeft(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		has, took time.Duration
	}{
		"a short time": {3 * time.Second, 2 * time.Second},
		"a long time":  {time.Minute, 10 * time.Second}, // the client's own limit is 15 s
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := &group{takes: map[string]time.Duration{"a": hangs, "b": hangs}}
				began := time.Now()
				if err := renew(within(t, test.has), g.client(t, "a", "b", "c")); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); took != test.took {
					t.Errorf("took %v, want %v", took, test.took)
				}
				g.were(t, "a b c")
			})
		})
	}
}

func TestTheLastGatewayHasAllTheTimeThatIsLeft(t *testing.T) {
	t.Parallel()
	for name, hosts := range map[string][]string{"of one": {"a"}, "of two": {"b", "a"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := &group{takes: map[string]time.Duration{"a": 9 * time.Second, "b": hangs}}
				if err := renew(t.Context(), g.client(t, hosts...)); err != nil {
					t.Fatal(err)
				}
				g.were(t, strings.Join(hosts, " "))
			})
		})
	}
}

func TestARequestEndsWhereItsGatewayHangs(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		took time.Duration
		ask  func(context.Context, *client.Client) error
	}{
		"renewal":    {15 * time.Second, renew},
		"release":    {15 * time.Second, func(ctx context.Context, c *client.Client) error { return c.Release(ctx, "h") }},
		"revocation": {30 * time.Second, revoke},
		"acquisition that waits": {75 * time.Second, func(ctx context.Context, c *client.Client) error {
			_, err := c.Acquire(ctx, client.AcquireRequest{Resource: "a", Wait: time.Minute})
			return err
		}},
		"acquisition of several": {15 * time.Second, func(ctx context.Context, c *client.Client) error {
			_, err := c.AcquireAll(ctx, []string{"a", "b"}, client.AcquireRequest{})
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := &group{takes: map[string]time.Duration{"a": hangs}}
				began := time.Now()
				if err := test.ask(t.Context(), g.client(t, "a")); !errors.Is(err, fence.ErrUnknown) {
					t.Errorf("%v", err)
				}
				if took := time.Since(began); took != test.took {
					t.Errorf("took %v, want %v", took, test.took)
				}
				g.were(t, "a")
			})
		})
	}
}

// A revocation has all of its time at one gateway, because it may not be sent to the next.
func TestAfterALateGatewayTheNextRequestStartsAtAnother(t *testing.T) {
	t.Parallel()
	for name, ask := range map[string]func(context.Context, *client.Client) error{
		"revocation": func(ctx context.Context, c *client.Client) error {
			_, err := c.Revoke(ctx, "a", "me")
			return err
		},
		"acquisition that may wait longer than its context": func(ctx context.Context, c *client.Client) error {
			_, err := c.Acquire(ctx, client.AcquireRequest{Resource: "a", Wait: time.Minute})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := &group{takes: map[string]time.Duration{"a": hangs}}
				c, began := g.client(t, "a", "b"), time.Now()
				if err := ask(within(t, 3*time.Second), c); !errors.Is(err, fence.ErrUnknown) {
					t.Errorf("%v", err)
				}
				if took := time.Since(began); took != 3*time.Second {
					t.Errorf("took %v", took)
				}
				g.were(t, "a")
				if err := renew(t.Context(), c); err != nil {
					t.Error(err)
				}
				g.were(t, "b")
			})
		})
	}
}

func revoke(ctx context.Context, c *client.Client) error {
	_, err := c.Revoke(ctx, "a", "me")
	return err
}

// A gateway drains the holder's writes for several seconds before it answers.
func TestARevocationHasAllOfItsTimeAtOneGateway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := &group{takes: map[string]time.Duration{"a": 14 * time.Second}, refuses: map[string]bool{"a": true}}
		if err := revoke(t.Context(), g.client(t, "a", "b")); !errors.Is(err, fence.ErrUndrained) || errors.Is(err, fence.ErrUnknown) {
			t.Errorf("%v", err)
		}
		g.were(t, "a")
	})
}

func TestARevocationPassesOnFromAGatewayToWhichNoConnectionIsMade(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := &group{cut: map[string]bool{"a": true}}
		c, began := g.client(t, "a", "b"), time.Now()
		if err := revoke(t.Context(), c); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took != 5*time.Second {
			t.Errorf("took %v", took)
		}
		if err := revoke(t.Context(), c); err != nil {
			t.Error(err)
		}
		g.were(t, "a b b")
	})
}

// The transport of net/http reports how far it comes.
func TestARevocationPassesOnWhileTheTransportConnects(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan struct{})
		defer close(ended)
		var mu sync.Mutex
		var dialed []string
		transport := &http.Transport{DialContext: func(_ context.Context, _, addr string) (net.Conn, error) {
			mu.Lock()
			dialed = append(dialed, addr)
			mu.Unlock()
			if addr == "a:80" {
				<-ended
			}
			return nil, errors.New("no route")
		}}
		c, err := client.New(client.Config{URL: "http://a,http://b", HTTPClient: &http.Client{Transport: transport}})
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if err := revoke(t.Context(), c); err == nil || !strings.Contains(err.Error(), "no route") {
			t.Errorf("%v", err)
		}
		mu.Lock()
		defer mu.Unlock()
		if took := time.Since(began); took != 5*time.Second || len(dialed) != 2 {
			t.Errorf("took %v, dialed %q", took, dialed)
		}
	})
}

func TestALateGatewayDoesNotUndoWhatAnotherRequestHasFound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := &group{takes: map[string]time.Duration{"a": hangs, "b": hangs}}
		c := g.client(t, "a", "b", "c")
		slow := make(chan error)
		go func() { slow <- renew(within(t, 7500*time.Millisecond), c) }() // leaves a after 2.5 s and b after 5 s
		synctest.Wait()
		if err := renew(within(t, 3*time.Second), c); err != nil { // finds c after 2 s
			t.Error(err)
		}
		<-time.After(time.Second)
		if err := renew(t.Context(), c); err != nil {
			t.Error(err)
		}
		g.were(t, "a a b c b c")
		if err := <-slow; err != nil {
			t.Error(err)
		}
		g.were(t, "c")
	})
}

func TestACanceledRequestSaysNothingOfItsGateway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := &group{takes: map[string]time.Duration{"a": 2 * time.Second}}
		c := g.client(t, "a", "b")
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if err := renew(ctx, c); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		if err := renew(t.Context(), c); err != nil {
			t.Error(err)
		}
		g.were(t, "a a")
	})
}

func TestAGatewayIsNotLateWhileItsRequestMayWait(t *testing.T) {
	t.Parallel()
	const wait = time.Hour
	for name, test := range map[string]struct {
		takes, took time.Duration
		asked       string
	}{
		"it answers at the end of the wait": {wait + 4*time.Second, wait + 4*time.Second, "a"},
		"it hangs":                          {hangs, wait + 5*time.Second, "a b"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := &group{takes: map[string]time.Duration{"a": test.takes}}
				began := time.Now()
				if _, err := g.client(t, "a", "b", "c").Acquire(t.Context(), client.AcquireRequest{Resource: "a", Wait: wait}); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); took != test.took {
					t.Errorf("took %v, want %v", took, test.took)
				}
				g.were(t, test.asked)
			})
		})
	}
}

// The wait counts once: a gateway that is asked after it has no second one.
func TestTheGatewaysAfterALateOneShareWhatIsLeftAfterTheWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := &group{takes: map[string]time.Duration{"a": hangs, "b": hangs}}
		if _, err := g.client(t, "a", "b", "c").Acquire(t.Context(), client.AcquireRequest{Resource: "a", Wait: time.Minute}); err != nil {
			t.Fatal(err)
		}
		g.were(t, "a b c")
	})
}
