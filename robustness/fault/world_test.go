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

// world is a cluster in memory: it records what is not in its
// normal state, and refuses actions that can't be done twice.
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
	net      relay.Net
	noDisk   bool
	noBlobs  bool
	spins    atomic.Int64
}

// newWorld is 3 clients, 2 gateways and 3 nodes, each served by an echo server.
func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{off: map[string]string{}, touched: make(chan struct{})}
	api := httptest.NewServer(http.HandlerFunc(w.api))
	t.Cleanup(api.Close)
	t.Cleanup(http.DefaultTransport.(*http.Transport).CloseIdleConnections)
	for i := range 3 {
		w.clients = append(w.clients, &part{w, fmt.Sprintf("client-%d", i+1), i + 1, ""})
		w.nodes = append(w.nodes, node{&part{w, fmt.Sprintf("redis-%d", i+1), i + 1, ""}})
	}
	for i := range 2 {
		w.gateways = append(w.gateways, &part{w, fmt.Sprintf("gateway-%d", i+1), i + 1, api.URL})
	}
	t.Cleanup(func() { _ = w.net.Close() })
	echo := echoServer(t)
	if _, err := w.net.Between("postgres-b", "postgres-a", echo); err != nil {
		t.Fatal(err)
	}
	for _, c := range []string{"client-1", "client-2", "gateway-1", "gateway-2"} {
		for _, s := range []string{"redis-1", "redis-2", "postgres-1", "gateway-1", "blobs"} {
			if _, err := w.net.Between(c, s, echo); err != nil {
				t.Fatal(err)
			}
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
	if state != "" && was != "" && aspect != "rule" && (aspect != "run" || call != "kill") {
		return fmt.Errorf("%s is %s already", name, was)
	}
	if state == "" {
		delete(w.off, name+" "+aspect)
	} else {
		w.off[name+" "+aspect] = state
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
func (w *world) Postgres() Postgres    { return &database{w} }
func (w *world) Links() []*relay.Relay { return w.net.Find("", "") }
func (w *world) Bucket() Bucket        { return Bucket{Name: "robust", Rule: "prefix:1", Keep: "none"} }
func (w *world) Async() bool           { return false }
func (w *world) Blobs() Blobs {
	if w.noBlobs {
		return nil
	}
	return service{&part{w, "blobs", 1, ""}}
}

func (w *world) Disk() Disk {
	if w.noDisk {
		return nil
	}
	return &disk{w}
}

// Spin may be called while it spins.
func (w *world) Spin(ctx context.Context, n int, d time.Duration) error {
	aspect := fmt.Sprintf("spin %d", w.spins.Add(1))
	if err := w.did("machine", "spin", aspect, "busy"); err != nil {
		return err
	}
	wait(ctx, d)
	return w.did("machine", "rest", aspect, "")
}

func (w *world) Tool(_ context.Context, args ...string) error {
	return w.did("tool", strings.Join(args[:2], " "), "tool", "")
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

// part is a client, a gateway or a node.
type part struct {
	w      *world
	name   string
	number int
	url    string
}

func (p *part) Name() string          { return p.name }
func (p *part) Number() int           { return p.number }
func (p *part) API() (string, string) { return p.url, "token" }
func (p *part) Freeze() error         { return p.w.did(p.name, "freeze", "run", "frozen") }
func (p *part) Thaw() error           { return p.w.did(p.name, "thaw", "run", "") }
func (p *part) Keep() error           { return nil }

func (p *part) Kill() error {
	if strings.HasPrefix(p.name, "gateway") { // its supervisor restarts it
		return p.w.did(p.name, "kill", "run", "")
	}
	return p.w.did(p.name, "kill", "run", "killed")
}
func (p *part) Stop(context.Context) error  { return p.w.did(p.name, "stop", "run", "") }
func (p *part) Ready(context.Context) error { return p.w.did(p.name, "ready", "", "") }

func (p *part) Admitted(context.Context) error { return p.w.did(p.name, "admitted", "", "") }

func (p *part) SetClock(d time.Duration) error {
	if d == 0 {
		return p.w.did(p.name, "clock right", "clock", "")
	}
	return p.w.did(p.name, "clock", "clock", d.String())
}

func (p *part) Flush(_ context.Context, what Part) error {
	return p.w.did(p.name, "flush "+string(what), "", "")
}

// node distinguishes the two restarts.
type node struct{ *part }

func (n node) Restart(_ context.Context, data Data) error {
	return n.w.did(n.name, fmt.Sprintf("restart %d", data), "run", "")
}

func (p *part) Restart(context.Context, client.Order) error {
	return p.w.did(p.name, "restart", "run", "")
}

// service restarts without an order.
type service struct{ *part }

func (s service) Restart(context.Context) error { return s.w.did(s.name, "restart", "run", "") }

type database struct{ w *world }

func (d *database) Kill() error                 { return d.w.did("primary", "kill", "run", "killed") }
func (d *database) Start(context.Context) error { return d.w.did("primary", "start", "run", "") }
func (d *database) Freeze() error               { return d.w.did("primary", "freeze", "run", "frozen") }
func (d *database) Thaw() error                 { return d.w.did("primary", "thaw", "run", "") }
func (d *database) FreezeStandby() error        { return d.w.did("standby", "freeze", "run", "frozen") }
func (d *database) ThawStandby() error          { return d.w.did("standby", "thaw", "run", "") }

func (d *database) Restart(_ context.Context, standby bool) error {
	return d.w.did("postgres", fmt.Sprintf("restart %v", standby), "run", "")
}

func (d *database) Failover(context.Context, cluster.Failover) (cluster.Switch, error) {
	return cluster.Switch{Primary: "b"}, d.w.did("postgres", "failover", "run", "")
}

func (d *database) CaughtUp(context.Context) error { return d.w.did("standby", "caught up", "", "") }

func (d *database) Superuser(context.Context) (*pgx.Conn, error) {
	return nil, errors.Join(d.w.did("primary", "login", "", ""), errBroken)
}

type disk struct{ w *world }

func (d *disk) Fill(context.Context, int64) error { return d.w.did("disk", "fill", "room", "full") }
func (d *disk) Free() error                       { return d.w.did("disk", "free", "room", "") }

// echoServer is a server that echoes.
func echoServer(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
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
	if _, err := conn.Write([]byte("there")); err != nil {
		return err
	}
	_, err = io.ReadFull(conn, make([]byte, 5))
	return err
}
