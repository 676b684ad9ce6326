package fault

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/robustness/client"
	"github.com/fencegate/fencegate/robustness/cluster"
	"github.com/fencegate/fencegate/robustness/relay"
)

var errBroken = errors.New("broken on purpose")

// world is a cluster in memory: it records what is not in its normal state, and refuses actions that can't be done
// twice.
type world struct {
	mu      sync.Mutex
	off     map[string]string // parts not in their normal state: "redis-1 run" → "frozen"
	calls   []string
	touched chan struct{} // closed at the first call
	once    sync.Once
	broken  string // the call that fails, for example "redis-1 restart"

	clients  []Client
	gateways []Gateway
	nodes    []Node
	blobs    []Server
	disks    []Disk
	net      relay.Net
	spins    atomic.Int64
}

// newWorld is 3 clients, 2 gateways and 3 nodes, with relays to an echo server.
func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{off: map[string]string{}, touched: make(chan struct{})}
	w.blobs, w.disks = []Server{thing{w, "blobs", 1, ""}}, []Disk{thing{w, "disk", 1, ""}}
	api := httptest.NewServer(http.HandlerFunc(w.api))
	t.Cleanup(api.Close)
	t.Cleanup(http.DefaultTransport.(*http.Transport).CloseIdleConnections)
	for i := range 3 {
		w.clients = append(w.clients, worker{thing{w, fmt.Sprintf("client-%d", i+1), i + 1, ""}})
		w.nodes = append(w.nodes, node{thing{w, fmt.Sprintf("redis-%d", i+1), i + 1, ""}})
	}
	for i := range 2 {
		w.gateways = append(w.gateways, gateway{thing{w, fmt.Sprintf("gateway-%d", i+1), i + 1, api.URL}})
	}
	t.Cleanup(func() { _ = w.net.Close() })
	echo := echoServer(t)
	ends := [][2]string{{"postgres-b", "postgres-a"}, {"balancer", "gateway-1/api"}, {"client-1", "balancer/api"}}
	for _, from := range []string{"client-1", "client-2", "gateway-1", "gateway-2"} {
		for _, to := range []string{"redis-1", "redis-2", "postgres-1", "gateway-1", "blobs"} {
			ends = append(ends, [2]string{from, to})
		}
	}
	for _, pair := range ends {
		if _, err := w.net.Between(pair[0], pair[1], echo); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// did records a call, and the resulting state: "" is normal.
func (w *world) did(name, call, aspect, state string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.once.Do(func() { close(w.touched) })
	w.calls = append(w.calls, name+" "+call)
	if w.broken == name+" "+call {
		return errBroken
	}
	was := w.off[name+" "+aspect]
	if state != "" && was != "" && aspect != "rule" && call != "kill" {
		return fmt.Errorf("%s is %s already", name, was)
	}
	w.off[name+" "+aspect] = state
	if state == "" {
		delete(w.off, name+" "+aspect)
	}
	return nil
}

func (w *world) state() map[string]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.off)
}

func (w *world) called() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.calls, "\n")
}

// Write receives the faults' log. The world notices there the faults for which it has no call.
func (w *world) Write(line []byte) (int, error) {
	if strings.Contains(string(line), ": ") { // a fault's draw
		w.once.Do(func() { close(w.touched) })
	}
	return len(line), nil
}

func (w *world) Clients() []Client     { return w.clients }
func (w *world) Gateways() []Gateway   { return w.gateways }
func (w *world) Nodes() []Node         { return w.nodes }
func (w *world) Blobs() []Server       { return w.blobs }
func (w *world) Disks() []Disk         { return w.disks }
func (w *world) Primary() Postgres     { return server{thing{w, "primary", 1, ""}} }
func (w *world) Standby() Postgres     { return server{thing{w, "standby", 2, ""}} }
func (w *world) Links() []*relay.Relay { return w.net.Find("", "") }
func (w *world) Async() bool           { return false }

// Spin may be called while it spins.
func (w *world) Spin(ctx context.Context, _ int, d time.Duration) error {
	aspect := fmt.Sprintf("spin %d", w.spins.Add(1))
	if err := w.did("machine", "spin", aspect, "busy"); err != nil {
		return err
	}
	wait(ctx, d)
	return w.did("machine", "rest", aspect, "")
}

func (w *world) Tool(_ context.Context, args ...string) (string, error) {
	return "", w.did("tool", strings.Join(args[:2], " "), "tool", "")
}

func (w *world) Failover(context.Context, cluster.Failover) (cluster.Switch, error) {
	return cluster.Switch{Primary: "b"}, w.did("postgres", "failover", "run", "")
}

func (w *world) CaughtUp(context.Context) error { return w.did("standby", "caught up", "", "") }

func (w *world) Superuser(context.Context) (*pgx.Conn, error) {
	return nil, errors.Join(w.did("primary", "login", "", ""), errBroken)
}

// api implements the gateway's endpoints for an operator.
func (w *world) api(out http.ResponseWriter, in *http.Request) {
	answer := "{}"
	var err error
	switch path := in.URL.EscapedPath(); {
	case strings.HasSuffix(path, "/revoke"):
		err, answer = w.did("resource", "revoke", "api", ""), `{"resource":"r","token":"77"}`
	case strings.HasPrefix(path, "/v1/sessions/"):
		err = w.did("session", "end", "api", "")
	case path == "/v1/sessions":
		err, answer = w.did("session", "list", "api", ""), `{"sessions":[{"id":"S1"}]}`
	case strings.HasSuffix(path, "/rules") && in.Method == http.MethodPut:
		err = w.did("bucket", "rule", "rule", "set")
	case strings.HasSuffix(path, "/rules"):
		err = w.did("bucket", "drop", "rule", "")
	case in.Method == http.MethodPut:
		err = w.did("bucket", "keep", "api", "")
	default:
		err = errors.New("not called by an operator: " + path)
	}
	if err != nil {
		out.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	_, _ = out.Write([]byte(answer))
}

// thing is any part of the world.
type thing struct {
	w      *world
	name   string
	number int
	url    string
}

func (p thing) ID() string                        { return p.name }
func (p thing) Number() int                       { return p.number }
func (p thing) URL() string                       { return p.url }
func (p thing) Freeze() error                     { return p.w.did(p.name, "freeze", "run", "frozen") }
func (p thing) Thaw() error                       { return p.w.did(p.name, "thaw", "run", "") }
func (p thing) Kill() error                       { return p.w.did(p.name, "kill", "run", "killed") }
func (p thing) Start(context.Context) error       { return p.w.did(p.name, "start", "run", "") }
func (p thing) Fill(context.Context, int64) error { return p.w.did(p.name, "fill", "room", "full") }
func (p thing) Free() error                       { return p.w.did(p.name, "free", "room", "") }

func (p thing) SetClock(d time.Duration) error {
	if d == 0 {
		return p.w.did(p.name, "clock right", "clock", "")
	}
	return p.w.did(p.name, "clock", "clock", d.String())
}

type worker struct{ thing }

func (k worker) Restart(context.Context, client.Order) error {
	return k.w.did(k.name, "restart", "run", "")
}

type server struct{ thing }

func (s server) Stop() error { return s.w.did(s.name, "stop", "run", "stopped") }

// gateway has a supervisor, which restarts it.
type gateway struct{ thing }

func (g gateway) Kill() error                 { return g.w.did(g.name, "kill", "run", "") }
func (g gateway) Stop(context.Context) error  { return g.w.did(g.name, "stop", "run", "") }
func (g gateway) Ready(context.Context) error { return g.w.did(g.name, "ready", "", "") }

type node struct{ thing }

func (n node) Keep() error                    { return nil }
func (n node) Admitted(context.Context) error { return n.w.did(n.name, "admitted", "", "") }

func (n node) Restart(_ context.Context, data cluster.Data) error {
	return n.w.did(n.name, fmt.Sprintf("restart %d", data), "run", "")
}

func (n node) Flush(_ context.Context, what cluster.Part) error {
	return n.w.did(n.name, "flush "+string(what), "", "")
}

// echoServer is a server that echoes.
func echoServer(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for conn, err := listener.Accept(); err == nil; conn, err = listener.Accept() {
			go func() {
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
			}()
		}
	}()
	return listener.Addr().String()
}

// carries checks that a relay carries a message there and back.
func carries(r *relay.Relay) error {
	conn, err := net.DialTimeout("tcp", r.Addr(), time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(2 * time.Second))
	_, err = conn.Write([]byte("there"))
	_, also := io.ReadFull(conn, make([]byte, 5))
	return errors.Join(err, also)
}
