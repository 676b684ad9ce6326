package runner_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/internal/runner"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

const presented = "34.0123456789abcdef0123456789abcdef"

// gateway answers the HTTP API from memory. renew decides the outcome of renewals.
type gateway struct {
	ttl      time.Duration
	valid    time.Duration // time left when it is granted or renewed; 0: all
	brief    bool          // the lease is lost at the command's first output
	over     atomic.Bool   // the lease is lost
	renew    func(w http.ResponseWriter, r *http.Request, n int32)
	release  func()
	renewals atomic.Int32
	acquired atomic.Int32
	released atomic.Int32
	portless bool // no PostgreSQL port, no S3 port
}

// brief is a gateway whose lease is lost at the command's first output. The command hears of it after a second or two,
// with most of the lease's time left: the gateway says that a third of the lease is almost over whenever it is renewed.
func brief() *gateway {
	const ttl = 20 * time.Second
	return &gateway{ttl: ttl, valid: ttl*2/3 + time.Second, brief: true}
}

func (g *gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	reply := func(v any) { _ = json.NewEncoder(w).Encode(v) }
	switch r.URL.Path {
	case "/v1/endpoints":
		if g.portless {
			reply(map[string]any{})
			return
		}
		reply(map[string]any{
			"pg": map[string]any{"host": "127.0.0.1", "port": 7432, "database": "app"},
			"s3": map[string]any{"url": "http://127.0.0.1:7480", "region": "us-east-1"},
		})
	case "/v1/leases":
		g.acquired.Add(1)
		reply(map[string]any{"resource": "orders/10 01", "token": "34", "grant": presented, "handle": "h", "ttl_ms": g.ttl.Milliseconds(), "valid_ms": cmp.Or(g.valid, g.ttl).Milliseconds()})
	case "/v1/leases/credentials":
		reply(map[string]any{"access_key_id": "ASIA1", "secret_access_key": "s", "session_token": "t", "endpoint_url": "http://127.0.0.1:7480", "region": "us-east-1"})
	case "/v1/leases/release":
		g.released.Add(1)
		if g.release != nil {
			g.release()
		}
		w.WriteHeader(http.StatusNoContent)
	case "/v1/leases/renew":
		n := g.renewals.Add(1)
		switch {
		case g.over.Load():
			w.WriteHeader(http.StatusGone)
			_, _ = io.WriteString(w, `{"code":"lease_lost","detail":"the lease is over","status":410}`)
		case g.renew != nil:
			g.renew(w, r, n)
		default:
			g.extend(w)
		}
	}
}

// extend answers that the lease is renewed.
func (g *gateway) extend(w http.ResponseWriter) {
	_, _ = fmt.Fprintf(w, `{"valid_ms":%d}`, cmp.Or(g.valid, g.ttl).Milliseconds())
}

func unavailable(w http.ResponseWriter) {
	w.WriteHeader(http.StatusServiceUnavailable)
	_, _ = io.WriteString(w, `{"code":"unavailable","detail":"no quorum of Redis","status":503}`)
}

// called is a transport that calls a handler, for a bubble. A request ends with its context, whatever the handler does.
// A handler that panics with [http.ErrAbortHandler] cuts the connection.
type called struct{ http.Handler }

func (c called) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
	}
	asked, answer := r.Clone(r.Context()), make(chan *http.Response, 1)
	asked.Body = io.NopCloser(bytes.NewReader(body))
	go func() {
		defer close(answer)
		defer func() {
			why := recover()
			if err, _ := why.(error); why != nil && !errors.Is(err, http.ErrAbortHandler) {
				panic(why)
			}
		}()
		w := httptest.NewRecorder()
		c.ServeHTTP(w, asked)
		answer <- w.Result()
	}()
	select {
	case got, ok := <-answer:
		if !ok {
			return nil, io.EOF
		}
		got.Request = r
		return got, nil
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

// inBubble is a run's configuration for a bubble. said returns what the run has said so far.
func inBubble(t *testing.T, gateway http.Handler, ttl time.Duration) (cfg runner.Config, said func() []string) {
	t.Helper()
	c, err := client.New(client.Config{URL: "http://gateway.invalid", HTTPClient: &http.Client{Transport: called{gateway}}})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var lines []string
	cfg = runner.Config{
		Client: c, Acquire: client.AcquireRequest{Resource: "r", TTL: ttl}, Command: []string{"true"}, Environ: []string{"PATH=/usr/bin:/bin"},
		Say: func(format string, args ...any) {
			mu.Lock()
			defer mu.Unlock()
			lines = append(lines, fmt.Sprintf(format, args...))
		},
	}
	return cfg, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(lines)
	}
}

// clientOf returns a client of a gateway that serves until the test's end.
func clientOf(t *testing.T, gateway http.Handler) *client.Client {
	t.Helper()
	server := httptest.NewServer(gateway)
	t.Cleanup(server.Close)
	c, err := client.New(client.Config{URL: server.URL, HTTPClient: server.Client()})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// configure returns a run's configuration for the script, with a gateway.
func configure(t *testing.T, g *gateway, script string) runner.Config {
	t.Helper()
	return runner.Config{
		Client: clientOf(t, g), Acquire: client.AcquireRequest{Resource: "r", TTL: g.ttl},
		Command: []string{"sh", "-c", script},
		Environ: []string{"PATH=/usr/bin:/bin"}, Say: func(string, ...any) {},
	}
}

type outcome struct {
	runner.Result
	stdout, said string
}

// run runs the script under a lease.
func run(t *testing.T, g *gateway, script string, inherited ...string) outcome {
	t.Helper()
	var stdout bytes.Buffer
	var mu sync.Mutex
	var said strings.Builder
	cfg := configure(t, g, script)
	cfg.Acquire.Resource = "orders/10 01"
	cfg.Environ = append(slices.Clone(inherited), // of two, the first is found
		"PATH=/usr/bin:/bin", "PGOPTIONS=-c statement_timeout=5s", "PGHOSTADDR=192.0.2.1", "PGSERVICE=around",
		"AWS_PROFILE=around", "AWS_DEFAULT_PROFILE=around", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS=around", "AWS_ACCESS_KEY_ID=old",
	)
	cfg.Stdout = writerFunc(func(b []byte) {
		_, _ = stdout.Write(b)
		g.over.Store(g.brief)
	})
	cfg.Say = func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		_, _ = fmt.Fprintf(&said, format+"\n", args...)
	}
	result, err := runner.Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return outcome{Result: result, stdout: stdout.String(), said: said.String()}
}

type writerFunc func([]byte)

func (f writerFunc) Write(b []byte) (int, error) { f(b); return len(b), nil }

// newFIFO creates a named pipe, and returns its name and a channel that is closed when the command has written to it.
func newFIFO(t *testing.T) (name string, written <-chan struct{}) {
	t.Helper()
	name = filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(name, 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = os.ReadFile(name)
	}()
	return name, done
}
