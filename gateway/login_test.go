//go:build unix

package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/gateway"
	"github.com/fencegate/fencegate/gateway/pgwire"
	"github.com/fencegate/fencegate/internal/testenv"
)

// login opens a session through the PostgreSQL port with these startup options.
func (c *client) login(ctx context.Context, pg testenv.PG, options string) (*pgx.Conn, error) {
	c.t.Helper()
	cfg := c.portConfig(pg, options)
	cfg.RuntimeParams["application_name"] = "checkout"
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err == nil {
		c.t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(ctx)) })
	}
	return conn, err
}

// Rules of the PostgreSQL port.
var (
	orders        = []pgwire.LeaseRule{{User: "*", Resource: "orders/*"}}
	grantRequired = []pgwire.Rule{{User: "*", Database: "*", Policy: pgwire.PolicyGrantRequired}}
)

// leasingGateway starts a gateway whose writers may lease orders/*, in front of a guarded table.
func leasingGateway(t *testing.T, change func(*gateway.Config)) (*client, testenv.PG) {
	t.Helper()
	pg := testenv.Postgres(t)
	guarded(t, pg)
	cfg := config(t, pg)
	cfg.PG.LeaseRules = orders
	if change != nil {
		change(&cfg)
	}
	return start(t, cfg), pg
}

// locked returns the holder of a resource, and whether it is held. It repeats the request until the nodes answer in time.
func (c *client) locked(resource string) (holder string, locked bool) {
	c.t.Helper()
	testenv.Eventually(c.t, "it is known whether "+resource+" is held", func() (known bool) {
		a := c.do("GET", "/v1/resources/"+resource, nil)
		lock, _ := a.Body["lock"].(map[string]any)
		holder, _ = lock["holder"].(string)
		locked, known = a.Body["locked"].(bool)
		return known || a.Status == http.StatusNotFound
	})
	return holder, locked
}

func fatal(err error) *pgconn.PgError {
	refused, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || refused.Severity != "FATAL" {
		return &pgconn.PgError{Message: fmt.Sprint(err)}
	}
	return refused
}

func TestALoginCanTakeALeaseForTheLifeOfItsConnection(t *testing.T) {
	t.Parallel()
	var log logbook
	c, pg := leasingGateway(t, func(cfg *gateway.Config) {
		cfg.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		cfg.PG.Rules = grantRequired
	})
	var conn *pgx.Conn
	testenv.Paced(t, 6*time.Second, func(ttl time.Duration) (err error) { // each renewal must come before the lease ends
		if conn, err = c.login(t.Context(), pg, fmt.Sprintf("-c fence.lease=orders/1001;fresh;ttl=%v;wait=1m", ttl)); err != nil {
			return err
		}
		if holder, locked := c.locked("orders/1001"); !locked || !strings.Contains(holder, conn.Config().User) {
			_ = conn.Close(t.Context())
			return fmt.Errorf("held by %q (%v)", holder, locked)
		}
		// Longer than the lease lasts without a renewal.
		for began := time.Now(); time.Since(began) < ttl+time.Second; {
			if _, err := conn.Exec(t.Context(), updateOrder, "leased"); err != nil {
				return fmt.Errorf("after %v: %w", time.Since(began), err)
			}
		}
		return nil
	})
	if _, err := conn.Exec(t.Context(), "DISCARD ALL"); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.PgConn().Exec(t.Context(), "UPDATE orders SET status = 'after DISCARD ALL'").ReadAll(); err != nil {
		t.Errorf("what a pool does between two jobs took the grant: %v", err)
	}
	var token, lease string
	if err := conn.QueryRow(t.Context(), "SELECT current_setting('fence.token'), coalesce(current_setting('fence.lease', true), '')").Scan(&token, &lease); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(token, "0.") || lease != "" {
		t.Errorf("token %.2s…, lease option %q in PostgreSQL", token, lease)
	}

	// Another session has to wait, and is told the holder.
	began := time.Now()
	_, err := c.login(t.Context(), pg, "-c fence.lease=orders/1001;fresh;wait=2s")
	if refused := fatal(err); refused.Code != "55P03" || !strings.Contains(refused.Message+refused.Detail, conn.Config().User) || time.Since(began) < 2*time.Second {
		t.Errorf("after %v: %+v; want FATAL 55P03 with the holder", time.Since(began), refused)
	}
	next := make(chan error, 1)
	go func() {
		conn, err := c.login(t.Context(), pg, "-c fence.lease=orders/1001;fresh;wait=1m")
		if err == nil {
			_, err = conn.Exec(t.Context(), updateOrder, "by the next")
		}
		next <- err
	}()
	testenv.Eventually(t, "it waits", func() bool {
		lock, _ := c.do("GET", "/v1/resources/orders/1001", nil).Body["lock"].(map[string]any)
		return lock["waiters"] == 1.0
	})
	if err := conn.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-next; err != nil {
		t.Errorf("when the first had left: %v", err)
	}
	_, seal, _ := strings.Cut(token, ".")
	if text := log.text(); strings.Contains(text, seal) || strings.Contains(text, "UPDATE orders") {
		t.Error("the log shows a seal, or SQL")
	}
}

func (l *logbook) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestLeaseLoginsThatFailLeaveNothingLocked(t *testing.T) {
	t.Parallel()
	c, pg := leasingGateway(t, func(cfg *gateway.Config) { cfg.PG.MaxUserConnections = 3 })
	for options, want := range map[string]string{
		"-c fence.lease=users/1;fresh":                                            "42501", // no rule
		"-c fence.lease=orders/*;fresh":                                           "22023",
		"-c fence.lease=":                                                         "22023",
		"-c fence.lease=orders/%zz;fresh":                                         "22023",
		"-c fence.lease=orders/2;fresh;ttl=soon":                                  "22023",
		"-c fence.lease=orders/2;fresh;ttl=-1s":                                   "22023",
		"-c fence.lease=orders/2;fresh;ttl=0s":                                    "22023",
		"-c fence.lease=orders/2;fresh;ttl=1ns":                                   "22023",
		"-c fence.lease=orders/2;fresh;ttl=2m":                                    "22023", // MaxTTL is 1 min
		"-c fence.lease=orders/2;fresh;wait=6m":                                   "22023",
		"-c fence.lease=orders/2;fresh;ttl=1s;ttl=2s":                             "22023",
		"-c fence.lease=orders/2":                                                 "22023", // neither once nor fresh
		"-c fence.lease=orders/2;ttl=5s":                                          "22023",
		"-c fence.lease=orders/2;fresh=1":                                         "22023",
		"-c fence.lease=orders/2;fresh;fresh":                                     "22023",
		"-c fence.lease=orders/2;once=":                                           "22023",
		"-c fence.lease=orders/2;once=1":                                          "22023", // a nonce that is too short
		"-c fence.lease=orders/2;fresh;once=0b64e2f4-5e4f-4f4c-9a68-0d2d2f0c9c11": "22023",
		"-c fence.lease=orders/2;fresh;":                                          "22023",
		"-c fence.lease=orders/2;fresh;color=red":                                 "22023",
		"-c fence.lease=orders/2;fresh -c fence.token=1":                          "22023",
		"-c fence.lease=orders/2;fresh -c fence.resource=a":                       "22023",
		"-c fence.lease=orders/2;fresh -c fence.grants=orders/1=1." + "00":        "22023",
		"-c fence.lease=orders/2;fresh;ttl=5s -c log_statement=all":               "42501", // PostgreSQL itself refuses the options
		"-c fence.lease=orders/2;fresh;ttl=5s -c no_such_parameter_anywhere=on":   "42704",
	} {
		_, err := c.login(t.Context(), pg, options)
		if got := fatal(err).Code; got != want {
			t.Errorf("%s: %q %v; want %q", options, got, err, want)
		}
		if _, locked := c.locked("orders/2"); locked {
			t.Errorf("%s: something stays locked", options)
		}
	}
}

func TestAClientThatVanishesWhileItWaitsLeavesTheQueue(t *testing.T) {
	t.Parallel()
	c, pg := leasingGateway(t, func(cfg *gateway.Config) { cfg.SQLURL = "" }) // its connections would be counted
	held := c.acquire("orders/1001", "1m", "0s")
	ctx, leave := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := c.login(ctx, pg, "-c fence.lease=orders/1001;fresh;wait=1m")
		ended <- err
	}()
	waiters := func() any {
		lock, _ := c.do("GET", "/v1/resources/orders/1001", nil).Body["lock"].(map[string]any)
		return lock["waiters"]
	}
	testenv.Eventually(t, "it waits", func() bool { return waiters() == 1.0 })
	leave()
	if err := <-ended; err == nil {
		t.Fatal("a login succeeded that nobody waited for")
	}
	testenv.Eventually(t, "it has left the queue", func() bool { return waiters() == 0.0 })
	c.want(http.StatusNoContent, "POST", "/v1/leases/release", map[string]string{"handle": held.handle})
	testenv.Eventually(t, "nobody holds it", func() bool { _, locked := c.locked("orders/1001"); return !locked })
	pool := pg.Pool(t)
	testenv.Eventually(t, "its PostgreSQL connection is gone", func() bool {
		var n int
		err := pool.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE usename = 'fencegate_test_writer' AND datname = current_database()").Scan(&n)
		return err == nil && n == 0
	})
}

func TestAClientThatVanishesGivesItsLeaseBack(t *testing.T) {
	t.Parallel()
	c, pg := leasingGateway(t, nil)
	conn, err := c.login(t.Context(), pg, "-c fence.lease=orders/1001;fresh")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "BEGIN; UPDATE orders SET status = 'half'"); err != nil {
		t.Fatal(err)
	}
	if err := conn.PgConn().Conn().Close(); err != nil { // no Terminate
		t.Fatal(err)
	}
	next := c.acquire("orders/1001", "1m", "20s")
	var status string
	if err := c.connect(pg, next).QueryRow(t.Context(), "SELECT status FROM orders").Scan(&status); err != nil || status != "new" {
		t.Errorf("%q, %v", status, err)
	}
}

func TestASessionWhoseLeaseIsLostEnds(t *testing.T) {
	t.Parallel()
	c, pg := leasingGateway(t, func(cfg *gateway.Config) { cfg.PG.FencesEvery = time.Hour }) // the renewal must find it
	for name, lose := range map[string]func() (says []string){
		"revoked": func() []string {
			c.want(http.StatusOK, "POST", "/v1/resources/orders/1001/revoke", map[string]string{"holder": "ops"})
			return []string{"stale"}
		},
		"raised behind the gateway's back": func() []string {
			if _, err := pgfence.New(testenv.PoolOf(t, pg.GatewayURL)).Revoke(t.Context(), "orders/1001", "another"); err != nil {
				t.Error(err)
			}
			// The renewal finds it, or, if the arming at the login is late, the look that follows it.
			return []string{"was taken by another", "stale"}
		},
	} {
		conn, err := c.login(t.Context(), pg, "-c fence.lease=orders/1001;fresh;ttl=9s;wait=20s")
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if _, err := conn.Exec(t.Context(), "BEGIN; SELECT * FROM orders FOR UPDATE"); err != nil {
			t.Fatal(err)
		}
		says := lose()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		_, err = conn.Exec(ctx, "SELECT pg_sleep(20)") // ends when the gateway ends the session
		cancel()
		if refused := fatal(err); refused.Code != "ZF001" || refused.Hint == "" || !strings.Contains(refused.Detail, `"orders/1001"`) || !slices.ContainsFunc(says, func(s string) bool { return strings.Contains(refused.Message, s) }) {
			t.Errorf("%s: %v; want it to say %q", name, err, says)
		}
	}
	testenv.Eventually(t, "the lock is free", func() bool { _, locked := c.locked("orders/1001"); return !locked })
}

func TestALeaseThatCannotBeRenewedEndsItsSession(t *testing.T) {
	t.Parallel()
	src := &failingSource{}
	c, pg := leasingGateway(t, func(cfg *gateway.Config) { src.into(t, cfg) })
	conn, err := c.login(t.Context(), pg, "-c fence.lease=orders/1001;fresh;ttl=6s")
	if err != nil {
		t.Fatal(err)
	}
	src.away.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	defer cancel()
	began := time.Now()
	_, err = conn.Exec(ctx, "SELECT pg_sleep(40)")
	if refused := fatal(err); refused.Code != "ZF001" || !strings.Contains(refused.Message, "renewed") {
		t.Errorf("%v", err)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("the session ended %v after the last renewal", took)
	}
	_, err = c.login(t.Context(), pg, "-c fence.lease=orders/1001;fresh;ttl=3s")
	if refused := fatal(err); refused.Code != "57P03" || refused.Hint == "" || strings.Contains(refused.Message, "no leader") {
		t.Errorf("while the source is away: %v", err)
	}
	src.away.Store(false)
	src.own.Store(true)
	if _, err = c.login(t.Context(), pg, "-c fence.lease=orders/1001;fresh;ttl=30s;wait=20s"); fatal(err).Code != "57P03" {
		t.Errorf("a source that arms with a seal of its own: %v", err)
	}
	testenv.Eventually(t, "nothing stays locked", func() bool { _, locked := c.locked("orders/1001"); return !locked })
}

func TestStopReleasesTheLeasesOfSessions(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	guarded(t, pg)
	cfg := config(t, pg)
	cfg.PG.LeaseRules, cfg.DrainTimeout = orders, 500*time.Millisecond
	one := start(t, cfg)
	cfg.BlobDir = t.TempDir()
	other := start(t, cfg)
	idle, err := one.login(t.Context(), pg, "-c fence.lease=orders/1;fresh")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := one.login(t.Context(), pg, "-c fence.lease=orders/2;fresh"); err != nil {
		t.Fatal(err)
	}
	waits := make(chan error, 1)
	go func() {
		_, err := one.login(t.Context(), pg, "-c fence.lease=orders/1;fresh;wait=1m")
		waits <- err
	}()
	testenv.Eventually(t, "it waits", func() bool {
		lock, _ := other.do("GET", "/v1/resources/orders/1", nil).Body["lock"].(map[string]any)
		return lock["waiters"] == 1.0
	})
	if err := one.g.Stop(); err != nil {
		t.Error(err)
	}
	if err := <-waits; fatal(err).Code != "57P01" {
		t.Errorf("who waited: %v; want 57P01", err)
	}
	if _, err := idle.Exec(t.Context(), "SELECT 1"); fatal(err).Code != "57P01" {
		t.Errorf("who was idle: %v; want 57P01", err)
	}
	for _, resource := range []string{"orders/1", "orders/2"} {
		other.acquire(resource, "1m", "0s") // does not wait
	}
}

func TestBadRulesAreRefusedAtTheStart(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*gateway.Config){
		"dead policy": func(c *gateway.Config) {
			c.PG.Rules = []pgwire.Rule{{User: "*", Database: "*"}, {User: "app", Database: "*"}}
		},
		"another database":  func(c *gateway.Config) { c.PG.Rules = []pgwire.Rule{{User: "app", Database: "nowhere"}} },
		"no port":           func(c *gateway.Config) { c.PGListen, c.PG.Rules = "", grantRequired },
		"negative timeout":  func(c *gateway.Config) { c.PG.IdleTimeout = -1 },
		"negative per user": func(c *gateway.Config) { c.PG.MaxUserConnections = -1 },
	} {
		cfg := gateway.Config{PostgresURL: "postgres://a@127.0.0.1:1/shop", Leases: noLeases, MasterKey: masterKey, PGListen: "127.0.0.1:0"}
		change(&cfg)
		if g, err := gateway.New(cfg); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("%s: %v; want it refused", name, err)
			if g != nil {
				_ = g.Stop()
			}
		}
	}
}
