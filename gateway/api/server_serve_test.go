package api_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/api"
	"github.com/fencegate/fencegate/wire"
)

func TestBearerTokenIsAskedOfEveryPathButHealth(t *testing.T) {
	t.Parallel()
	s := newServer(t, newFakes(), func(c *api.Config) { c.BearerToken = "correct horse" })
	for _, header := range []string{"", "Bearer", "Bearer wrong", "Bearer correct horsf", "Basic correct horse", "correct horse", "Bearer correct horse "} {
		a := request(t, s, "GET", "/v1/resources/a", "", "Authorization", header)
		if a.status != http.StatusUnauthorized || a.str("code") != "unauthorized" || a.header.Get("WWW-Authenticate") == "" {
			t.Errorf("%q: %d %s", header, a.status, a.text)
		}
	}
	for _, path := range []string{"POST /v1/leases", "POST /v1/sql", "PUT /v1/buckets/b", "GET /v1/endpoints", "GET /metrics"} {
		method, path, _ := strings.Cut(path, " ")
		if a := request(t, s, method, path, ""); a.status != http.StatusUnauthorized {
			t.Errorf("%s %s: %d %s", method, path, a.status, a.text)
		}
	}
	for _, scheme := range []string{"Bearer", "bearer"} {
		if a := request(t, s, "GET", "/v1/resources/a", "", "Authorization", scheme+" correct horse", "Host", "gateway.example"); a.status != http.StatusOK {
			t.Errorf("%s with the token: %d %s", scheme, a.status, a.text)
		}
	}
}

func TestWithoutATokenOnlyLoopbackNamesAreServed(t *testing.T) {
	t.Parallel()
	s := newServer(t, newFakes())
	for host, want := range map[string]int{
		"127.0.0.1:7070": 200, "localhost": 200, "LOCALHOST:1": 200, "[::1]:7070": 200, "127.0.0.2": 200,
		"evil.example:7070": 400, "10.0.0.1": 400, "localhost.evil.example": 400, "": 400,
	} {
		if a := request(t, s, "GET", "/v1/resources/a", "", "Host", host); a.status != want {
			t.Errorf("Host %q: %d, want %d", host, a.status, want)
		}
	}
}

// serve runs a server on a port until the test ends.
func serve(t *testing.T, s *api.Server) (url string, stop func()) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, ln) }()
	stopped := false
	stop = func() {
		cancel()
		if !stopped {
			stopped = true
			if err := <-ended; err != nil {
				t.Errorf("serve: %v", err)
			}
		}
	}
	t.Cleanup(stop)
	return "http://" + ln.Addr().String(), stop
}

func post(ctx context.Context, way http.RoundTripper, url, body string, headers ...string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	return way.RoundTrip(req)
}

// waiting makes f a lock that is held until it is released. It then grants even if the context has ended, like a lock
// whose last answer has just arrived.
func waiting(f *fakes) (entered chan struct{}) {
	entered = make(chan struct{})
	grant := f.acquire
	f.acquire = func(ctx context.Context, req leasing.Request) (leasing.Lease, error) {
		close(entered)
		<-ctx.Done()
		return grant(ctx, req)
	}
	return entered
}

func TestLeaseGrantedAfterTheClientWentIsGivenBack(t *testing.T) {
	t.Parallel()
	f := newFakes()
	entered := waiting(f)
	url, _ := serve(t, newServer(t, f))
	ctx, leave := context.WithCancel(t.Context())
	answered := make(chan error, 1)
	go func() {
		resp, err := post(ctx, &http.Transport{DisableKeepAlives: true}, url+"/v1/leases", `{"resource":"orders/1001","wait":"60s"}`)
		if err == nil {
			_ = resp.Body.Close()
		}
		answered <- err
	}()
	<-entered
	leave()
	if err := <-answered; err == nil {
		t.Error("the client was answered")
	}
	select {
	case ref := <-f.released:
		if want := (leasing.Ref{Resource: "orders/1001", Owner: "0123456789abcdef", Token: 34}); ref != want {
			t.Errorf("released %+v, want %+v", ref, want)
		}
	case <-time.After(10 * time.Second):
		t.Error("the lease that nobody waits for stays held")
	}
}

func TestStopEndsAWaitAndSaysSo(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		unknown error // joined with the acquisition's error
		headers []string
		hint    string
	}{
		"nothing was done":     {hint: "Nothing was done."},
		"it may have been":     {fence.ErrUnknown, nil, "Whether it was done is unknown. Look"},
		"a repeat can find it": {fence.ErrUnknown, []string{wire.IdempotencyKey, aKey}, "Whether it was done is unknown. Repeat the request with the same Idempotency-Key"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFakes()
			entered := make(chan struct{})
			f.acquire = func(ctx context.Context, _ leasing.Request) (leasing.Lease, error) {
				close(entered)
				<-ctx.Done()
				return leasing.Lease{}, errors.Join(ctx.Err(), c.unknown)
			}
			s := newServer(t, f)
			_, stop := serve(t, s)
			answered := make(chan answer, 1)
			go func() {
				answered <- request(t, s, "POST", "/v1/leases", `{"resource":"a","wait":"60s"}`, c.headers...)
			}()
			<-entered
			stop()
			a := <-answered
			if a.status != http.StatusServiceUnavailable || a.str("code") != wire.CodeUnavailable || a.str("part") != wire.PartGateway || !strings.HasPrefix(a.str("hint"), c.hint) {
				t.Errorf("%d %s", a.status, a.text)
			}
		})
	}
}

// deadlines records the last read deadline.
type deadlines struct {
	*httptest.ResponseRecorder
	set  int
	last time.Time
}

func (d *deadlines) SetReadDeadline(t time.Time) error {
	d.set++
	d.last = t
	return nil
}

func TestDeadlineForTheBodyDoesNotEndALongWait(t *testing.T) {
	t.Parallel()
	// net/http ends the request's context when reading fails, also while the handler waits.
	f := newFakes()
	s := newServer(t, f)
	rec := &deadlines{ResponseRecorder: httptest.NewRecorder()}
	inner := f.acquire
	f.acquire = func(ctx context.Context, req leasing.Request) (leasing.Lease, error) {
		if rec.set == 0 || !rec.last.IsZero() {
			t.Errorf("while it waits, the deadline is %v, after %d settings", rec.last, rec.set)
		}
		return inner(ctx, req)
	}
	req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/leases", strings.NewReader(`{"resource":"a"}`))
	req.Host = "localhost"
	req.Header.Set("Content-Type", "application/json")
	s.Handler().ServeHTTP(rec, req)
	if rec.Code != http.StatusCreated {
		t.Errorf("status %d", rec.Code)
	}
}

func TestConfigIsValidatedOnce(t *testing.T) {
	t.Parallel()
	f := newFakes()
	for name, cfg := range map[string]api.Config{
		"no leases":     {Fences: f, Handles: keys},
		"no fences":     {Leases: leases{f}, Handles: keys},
		"negative time": {Leases: leases{f}, Fences: f, Handles: keys, MaxTTL: -1},
	} {
		if _, err := api.New(cfg); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
