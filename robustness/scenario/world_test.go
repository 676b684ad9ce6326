package scenario_test

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/internal/testenv/clockshim"
	"github.com/fencegate/fencegate/lock/admin"
	"github.com/fencegate/fencegate/robustness/relay"
)

// patience bounds every wait of a scenario.
const patience = 30 * time.Second

// lease is the duration of a lease that a scenario lets expire.
const lease = time.Second

// long is one that does not expire within a scenario: the plain library's default.
const long = 8 * time.Second

// world is a row, five Redis nodes A to E, and one of the two kinds of clients.
type world struct {
	t      *testing.T
	fenced bool
	ttl    time.Duration
	prefix string
	pg     testenv.PG
	admin  *pgxpool.Pool
	nodes  []*redisserver.Server // if the scenario breaks them
	addrs  []string
	clocks []*clockshim.Clock
}

const resource = "orders/1001"

var worlds atomic.Int64

// options configure a scenario.
type options struct {
	ttl   time.Duration // default: lease
	plain time.Duration // the plain library's; default: ttl
	own   bool          // nodes that the scenario breaks
	clock bool          // nodes with settable clocks
	redis redisserver.Config
}

// besides runs a scenario with the plain library and with fencegate.
func besides(t *testing.T, o options, story func(t *testing.T, w *world)) {
	t.Helper()
	t.Parallel()
	for _, fenced := range []bool{false, true} {
		t.Run(map[bool]string{false: "Redlock", true: "fencegate"}[fenced], func(t *testing.T) {
			t.Parallel()
			story(t, newWorld(t, fenced, o))
		})
	}
}

func newWorld(t *testing.T, fenced bool, o options) *world {
	t.Helper()
	w := &world{t: t, fenced: fenced, ttl: o.ttl, pg: testenv.Postgres(t)}
	if o.plain != 0 && !fenced {
		w.ttl = o.plain
	}
	w.ttl = cmp.Or(w.ttl, lease)
	w.admin = w.pg.Pool(t)
	for _, sql := range []string{
		"CREATE TABLE plain (resource text PRIMARY KEY, value text NOT NULL, token bigint NOT NULL DEFAULT 0)",
		"CREATE TABLE guarded (resource text COLLATE \"C\" PRIMARY KEY, value text NOT NULL)",
		"INSERT INTO plain VALUES ('" + resource + "', '')",
		"INSERT INTO guarded VALUES ('" + resource + "', '')",
		"SELECT fence.protect('guarded', per_row => 'resource')",
		"GRANT SELECT, UPDATE ON plain, guarded TO fence_writer",
	} {
		_, err := w.admin.Exec(t.Context(), sql)
		must(t, err)
	}
	switch w.prefix = fmt.Sprintf("scenario-%d", worlds.Add(1)); {
	case o.clock:
		w.clockedNodes()
	case o.own:
		w.nodes = testenv.OwnRedisWith(t, 5, o.redis)
	default:
		shared := testenv.Redis(t, 5)
		w.addrs, w.prefix = shared.Addrs, shared.Prefix
	}
	for _, node := range w.nodes {
		w.addrs = append(w.addrs, node.Addr)
	}
	if fenced {
		w.initialise()
	}
	return w
}

func (w *world) clockedNodes() {
	first := clockshim.New(w.t)
	for range 5 {
		clock := first.Another(w.t)
		node, err := redisserver.Start(w.t.Context(), redisserver.Config{Env: clock.Env()})
		must(w.t, err)
		w.t.Cleanup(func() { must(w.t, node.Close()) })
		w.nodes, w.clocks = append(w.nodes, node), append(w.clocks, clock)
	}
}

// initialise admits the nodes of a new group.
func (w *world) initialise() {
	w.t.Helper()
	f, err := fencegate(w.t.Context(), w.settings(w.addrs, ""))
	must(w.t, err)
	defer f.close()
	must(w.t, admin.Of(f.locker).Init(w.t.Context()))
}

func (w *world) settings(nodes []string, writer string) settings {
	if writer == "" {
		writer = w.pg.WriterURL
	}
	return settings{
		Fenced: w.fenced, Resource: resource, Prefix: w.prefix, Nodes: nodes,
		Writer: writer, Gateway: w.pg.GatewayURL, TTL: w.ttl, MaxTTL: w.ttl,
	}
}

// client starts a client in this process with these node addresses.
func (w *world) client(nodes []string) *client {
	w.t.Helper()
	c, err := connect(w.t.Context(), w.settings(nodes, ""))
	must(w.t, err)
	w.t.Cleanup(c.close)
	return c
}

// only returns the addresses of the named nodes, for example "ABC".
func (w *world) only(names string) []string {
	addrs := make([]string, len(w.addrs))
	for i := range addrs {
		addrs[i] = testenv.DeadAddr(w.t)
	}
	for _, name := range names {
		addrs[name-'A'] = w.addrs[name-'A']
	}
	return addrs
}

// relayed puts a relay before each node.
func (w *world) relayed() (relays []*relay.Relay, addrs []string) {
	w.t.Helper()
	for _, addr := range w.addrs {
		r := newRelay(w.t, addr)
		relays, addrs = append(relays, r), append(addrs, r.Addr())
	}
	return relays, addrs
}

// relayedWriter puts a relay before PostgreSQL, and returns the writer's address through it.
func (w *world) relayedWriter() (*relay.Relay, string) {
	w.t.Helper()
	u, err := url.Parse(w.pg.WriterURL)
	must(w.t, err)
	r := newRelay(w.t, u.Host)
	u.Host = r.Addr()
	return r, u.String()
}

func newRelay(t *testing.T, server string) *relay.Relay {
	t.Helper()
	r, err := relay.New(server)
	must(t, err)
	t.Cleanup(func() { must(t, r.Close()) })
	return r
}

// value is the row's value.
func (w *world) value() string {
	w.t.Helper()
	table := map[bool]string{false: "plain", true: "guarded"}[w.fenced]
	var value string
	must(w.t, w.admin.QueryRow(w.t.Context(), "SELECT value FROM "+table).Scan(&value))
	return value
}

// until waits for an event of the scenario.
func (w *world) until(what string, happened func() bool) {
	w.t.Helper()
	tick, limit := time.NewTicker(5*time.Millisecond), time.After(patience)
	defer tick.Stop()
	for !happened() {
		select {
		case <-tick.C:
		case <-limit:
			w.t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// holders counts the nodes that have the resource's lock.
func (w *world) holders() int {
	n := 0
	for _, addr := range w.addrs {
		must(w.t, w.on(addr, func(ctx context.Context, node *redis.Client) error {
			names, err := node.Keys(ctx, w.prefix+"*"+resource).Result()
			if len(names) > 0 {
				n++
			}
			return err
		}))
	}
	return n
}

// wantStaleWrite checks the write of a client whose lease had ended, made after the new holder had written "new": it
// succeeds without a fence, and is refused with one.
func (w *world) wantStaleWrite(err error) {
	w.t.Helper()
	a := reply{}
	if err != nil {
		code, _ := fence.CodeOf(err)
		a = reply{Error: err.Error(), Code: code.SQLState}
	}
	w.wantStaleAnswer(a)
}

func (w *world) wantStaleAnswer(a reply) {
	w.t.Helper()
	value := w.value()
	switch {
	case !w.fenced && (a.Error != "" || value != "old"):
		w.t.Errorf("the plain library should have lost the newer value: %+v, the row is %q", a, value)
	case w.fenced && a.Code != "ZF001":
		w.t.Errorf("the stale write was answered with %+v; want ZF001", a)
	case w.fenced && value != "new":
		w.t.Errorf("the row is %q; the newer value is lost", value)
	}
}

// must fails the test at an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// bounded is the context of one wait.
func (w *world) bounded() context.Context {
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	w.t.Cleanup(cancel)
	return ctx
}
