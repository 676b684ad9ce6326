package runner_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
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
	valid    time.Duration // time left when it is granted; 0: all
	renew    func(w http.ResponseWriter, n int32)
	release  func()
	renewals atomic.Int32
	acquired atomic.Int32
	released atomic.Int32
	portless bool // no PostgreSQL port, no S3 port
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
		if g.renew != nil {
			g.renew(w, n)
			return
		}
		reply(map[string]any{"valid_ms": g.ttl.Milliseconds()})
	}
}

func lost(w http.ResponseWriter, _ int32) {
	w.WriteHeader(http.StatusGone)
	_, _ = fmt.Fprint(w, `{"code":"lease_lost","detail":"the lease is over","status":410}`)
}

func unavailable(w http.ResponseWriter, _ int32) {
	w.WriteHeader(http.StatusServiceUnavailable)
	_, _ = fmt.Fprint(w, `{"code":"unavailable","detail":"no quorum of Redis","status":503}`)
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
	took         time.Duration
}

func run(t *testing.T, g *gateway, onLost runner.OnLost, script string, inherited ...string) outcome {
	t.Helper()
	got, err := tryRun(t, g, onLost, script, inherited...)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// tryRun is run, with the error of a command that was not started.
func tryRun(t *testing.T, g *gateway, onLost runner.OnLost, script string, inherited ...string) (outcome, error) {
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
	cfg.OnLost, cfg.Stdout, cfg.Stderr = onLost, &stdout, &stdout
	cfg.Say = func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		_, _ = fmt.Fprintf(&said, format+"\n", args...)
	}
	begin := time.Now()
	result, err := runner.Run(t.Context(), cfg)
	return outcome{Result: result, stdout: stdout.String(), said: said.String(), took: time.Since(begin)}, err
}

// busy is how late a process may end on a busy machine.
// TestTheCommandIsKilledBeforeItsLeaseIsOver covers when it is signalled.
const busy = 10 * time.Second

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
