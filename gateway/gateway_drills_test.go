//go:build unix

package gateway_test

import (
	"errors"
	"net/http"
	"syscall"
	"testing"
	"time"

	"github.com/fencegate/fencegate/gateway"
	"github.com/fencegate/fencegate/internal/pgserver"
	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
)

// The drills of docs/restarts.md, with real servers. Each asserts its row of the page, with bounds for a busy machine.

// drill is a PostgreSQL that restarts with its data, Redis nodes that keep theirs, and a gateway in front.
type drill struct {
	*cluster

	folder string
	pg     *pgserver.Server
	nodes  []*redisserver.Server
	cfg    gateway.Config
}

func startDrill(t *testing.T, nodes int) *drill {
	t.Helper()
	d := &drill{cluster: startCluster(t), folder: testenv.ServerDir(t)}
	if err := errors.Join(d.CopyTo(t.Context(), d.folder, false), d.Stop()); err != nil {
		t.Fatal(err)
	}
	d.startPostgres(t)
	d.nodes = testenv.OwnRedisWith(t, nodes, redisserver.Config{AppendOnly: redisserver.Always})
	d.cfg = d.gateway(t)
	d.cfg.PGListen, d.cfg.RedisNodes, d.cfg.DefaultTTL, d.cfg.MaxTTL = "127.0.0.1:0", nil, 5*time.Second, 30*time.Second
	for _, n := range d.nodes {
		d.cfg.RedisNodes = append(d.cfg.RedisNodes, lock.Node{Addr: n.Addr})
	}
	return d
}

func (d *drill) startPostgres(t *testing.T) {
	t.Helper()
	d.pg = run(t, d.folder)
	d.at.moveTo(d.pg.Addr())
}

func (d *drill) writer() testenv.PG { return testenv.PG{WriterURL: d.as("writer")} }

// restartNodes kills the nodes together, and starts them again after between.
func (d *drill) restartNodes(t *testing.T, nodes []*redisserver.Server, between func()) {
	t.Helper()
	for _, n := range nodes {
		if err := n.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	between()
	for _, n := range nodes {
		if err := n.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// wantStatus wants this status of the order in the database.
func (d *drill) wantStatus(t *testing.T, want string) {
	t.Helper()
	if got := execOn(t, d.pg, "SELECT status FROM orders WHERE id = 1001"); got != want {
		t.Errorf("the order is %q, want %q", got, want)
	}
}

// After the restart of two of three nodes, or of the only one, no lease is granted or renewed for the longest TTL,
// and holders can still write.
func TestADrillOfAQuorumOfRedisNodes(t *testing.T) {
	t.Parallel()
	for name, nodes := range map[string]int{"two of three": 3, "the only one": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := startDrill(t, nodes)
			d.cfg.MaxTTL = 5 * time.Second
			d.cfg.NodeTimeout = 2 * time.Second // a renewal is tried for twice as long
			c := start(t, d.cfg)
			held := c.acquire("orders/1001", "5s")
			conn := c.connect(d.writer(), held)
			var back time.Time // the nodes, and no quarantine begins before
			d.restartNodes(t, d.nodes[:nodes/2+1], func() {
				c.want(http.StatusServiceUnavailable, "POST", "/v1/leases", map[string]string{"resource": "orders/2"})
				c.want(http.StatusServiceUnavailable, "POST", "/v1/leases/renew", map[string]string{"handle": held.handle})
				if _, err := conn.Exec(t.Context(), updateOrder, "without a quorum"); err != nil {
					t.Errorf("a write under the lease that is held: %v", err)
				}
				back = time.Now()
			})
			untilReady(c)
			c.acquire("orders/2", "5s") // nobody held it
			if took := time.Since(back); took < d.cfg.MaxTTL-100*time.Millisecond {
				t.Errorf("the next lease came %v after the nodes", took)
			}
			next := c.acquire("orders/1001", "5s")
			if number(t, next.token) <= number(t, held.token) {
				t.Errorf("token %s after %s", next.token, held.token)
			}
			if refused := d.write(t, held.grant); refused != "ZF001" {
				t.Errorf("the holder of before: %q, want ZF001", refused)
			}
			d.wantStatus(t, "without a quorum")
		})
	}
}

// After a clean shutdown or a crash of PostgreSQL, open transactions roll back, the gateway recovers by itself, and no
// grant is lost.
func TestADrillOfPostgreSQL(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*pgserver.Server) error{"stopped": (*pgserver.Server).Stop, "killed": (*pgserver.Server).Kill} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := startDrill(t, 1)
			c := start(t, d.cfg)
			held := c.acquire("orders/1001", "30s")
			conn := c.connect(d.writer(), held)
			if _, err := conn.Exec(t.Context(), updateOrder, "committed"); err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Exec(t.Context(), "BEGIN; UPDATE orders SET status = 'open' WHERE id = 1001"); err != nil {
				t.Fatal(err)
			}
			var backend int
			if err := conn.QueryRow(t.Context(), "SELECT pg_backend_pid()").Scan(&backend); err != nil {
				t.Fatal(err)
			}
			if err := end(d.pg); err != nil {
				t.Fatal(err)
			}
			testenv.Eventually(t, "the backend has ended", func() bool { // it outlives a killed postmaster for a moment
				return errors.Is(syscall.Kill(backend, 0), syscall.ESRCH)
			})
			c.want(http.StatusServiceUnavailable, "POST", "/v1/leases", map[string]string{"resource": "orders/2", "ttl": "5s"})
			c.want(http.StatusOK, "POST", "/v1/leases/renew", map[string]string{"handle": held.handle, "ttl": "30s"})
			if _, err := conn.Exec(t.Context(), "COMMIT"); err == nil {
				t.Error("the transaction that was open has committed")
			}
			d.startPostgres(t)
			began := time.Now()
			untilReady(c)
			t.Logf("ready %v after PostgreSQL", time.Since(began).Round(100*time.Millisecond))
			d.wantStatus(t, "committed")
			if _, err := c.connect(d.writer(), held).Exec(t.Context(), updateOrder, "after it"); err != nil {
				t.Errorf("under the grant from before: %v", err)
			}
			c.acquire("orders/2", "30s")
			d.wantStatus(t, "after it")
		})
	}
}

// One of two gateways stops: its sessions end between two transactions, and the other gateway serves its leases.
func TestADrillOfAGateway(t *testing.T) {
	t.Parallel()
	d := startDrill(t, 1)
	leaves, stays := start(t, d.cfg), start(t, d.cfg)
	held := leaves.acquire("orders/1001", "30s")
	busy, idle := leaves.connect(d.writer(), held), leaves.connect(d.writer(), held)
	if _, err := busy.Exec(t.Context(), "BEGIN; UPDATE orders SET status = 'committed while it drains' WHERE id = 1001"); err != nil {
		t.Fatal(err)
	}
	stopped := stopping(leaves)
	if err := idle.PgConn().WaitForNotification(t.Context()); sqlState(err) != "57P01" {
		t.Errorf("the idle session: %v; want 57P01", err)
	}
	stays.want(http.StatusOK, "POST", "/v1/leases/renew", map[string]string{"handle": held.handle, "ttl": "30s"})
	if _, err := busy.Exec(t.Context(), "COMMIT"); err != nil {
		t.Errorf("the transaction that was open: %v", err)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	d.wantStatus(t, "committed while it drains")
	if _, err := stays.connect(d.writer(), held).Exec(t.Context(), updateOrder, "at the other"); err != nil {
		t.Errorf("at the other gateway: %v", err)
	}
	stays.want(http.StatusNoContent, "POST", "/v1/leases/release", map[string]string{"handle": held.handle})
	d.wantStatus(t, "at the other")
}

// All parts restart, in the order of the page and in another: nothing is lost, the next token is higher, and the old
// grant is refused once another client has the resource.
func TestADrillOfEverything(t *testing.T) {
	t.Parallel()
	for name, gatewayFirst := range map[string]bool{"gateways first": true, "gateways stay": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := startDrill(t, 3)
			d.cfg.MaxTTL = 5 * time.Second
			c := start(t, d.cfg)
			held := c.acquire("orders/1001", "5s")
			conn := c.connect(d.writer(), held)
			if _, err := conn.Exec(t.Context(), updateOrder, "before"); err != nil {
				t.Fatal(err)
			}
			if gatewayFirst {
				if err := c.g.Stop(); err != nil {
					t.Fatal(err)
				}
			}
			var back time.Time // the nodes, and no quarantine begins before
			d.restartNodes(t, d.nodes, func() {
				if err := d.pg.Stop(); err != nil {
					t.Fatal(err)
				}
				d.startPostgres(t)
				back = time.Now()
			})
			if gatewayFirst {
				c = start(t, d.cfg)
			}
			d.wantStatus(t, "before")
			if refused := d.write(t, held.grant); refused != "" && refused != "ZF001" {
				t.Errorf("the grant from before: %q", refused)
			}
			untilReady(c)
			next := c.acquire("orders/1001", "5s")
			if waited := time.Since(back); waited < d.cfg.MaxTTL-100*time.Millisecond {
				t.Errorf("the next lease came %v after the nodes", waited)
			}
			if number(t, next.token) <= number(t, held.token) {
				t.Errorf("token %s after %s", next.token, held.token)
			}
			if refused := d.write(t, held.grant); refused != "ZF001" {
				t.Errorf("the grant from before, after the next one: %q, want ZF001", refused)
			}
			if refused := d.write(t, next.grant); refused != "" {
				t.Errorf("the next holder: %q", refused)
			}
		})
	}
}
