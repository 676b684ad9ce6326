//go:build unix

package gateway_test

import (
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/internal/testenv"
)

// After a release no write passes on any port, even if nobody has acquired since.
func TestAReleasedLeaseIsRefusedOnEveryPort(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	guarded(t, pg)
	c := start(t, config(t, pg))
	l := c.acquire("orders/1001", "1m")
	conn := c.connect(pg, l)
	creds := c.want(http.StatusOK, "POST", "/v1/leases/credentials", map[string]string{"handle": l.handle})
	if _, err := conn.Exec(t.Context(), updateOrder, "held"); err != nil {
		t.Fatal(err)
	}
	if err := c.put(creds, "1001/a", "held"); err != nil {
		t.Fatal(err)
	}
	c.want(http.StatusNoContent, "POST", "/v1/leases/release", map[string]string{"handle": l.handle})
	c.want(http.StatusNoContent, "POST", "/v1/leases/release", map[string]string{"handle": l.handle})

	const released = `the lease of token `
	for name, conn := range map[string]*pgx.Conn{"a session from before": conn, "a new session": c.connect(pg, l)} {
		if _, err := conn.Exec(t.Context(), updateOrder, "released"); err == nil || !strings.Contains(err.Error(), released) || !strings.Contains(err.Error(), "ZF001") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := c.put(creds, "1001/a", "released"); err == nil || !strings.Contains(err.Error(), "StaleFencingToken") || !strings.Contains(err.Error(), released) {
		t.Errorf("S3: %v", err)
	}
	a := c.want(http.StatusPreconditionFailed, "POST", "/v1/sql", map[string]any{"statements": []any{map[string]string{"sql": "SELECT 1"}}},
		"Fencing-Resource", l.resource, "Fencing-Token", l.grant)
	if a.text("code") != "ZF001" || !strings.Contains(a.text("detail"), released) || a.text("recorded") != l.token || strings.Contains(a.text("hint"), "newer holder") {
		t.Errorf("SQL: %v", a.Body)
	}
	for _, path := range []string{"/v1/leases/credentials", "/v1/leases/renew"} {
		if a := c.want(http.StatusGone, "POST", path, map[string]string{"handle": l.handle}); a.text("code") != "lease_lost" {
			t.Errorf("%s: %v", path, a.Body)
		}
	}
	if a := c.want(http.StatusOK, "GET", "/v1/resources/orders/1001", nil); a.text("ended_at") == "" || a.text("token") != l.token || a.Body["locked"] != false {
		t.Errorf("the resource: %v", a.Body)
	}

	next := c.acquire("orders/1001", "1m")
	if _, err := c.connect(pg, next).Exec(t.Context(), updateOrder, "next"); err != nil {
		t.Errorf("the next holder: %v", err)
	}
	if err := c.upload(next, "1001/a", "next"); err != nil {
		t.Errorf("the next holder: %v", err)
	}
	if a := c.want(http.StatusOK, "GET", "/v1/resources/orders/1001", nil); a.Body["ended_at"] != nil {
		t.Errorf("the resource: %v", a.Body)
	}
}

// A release frees the lock whatever PostgreSQL does, and waits for PostgreSQL at most half a second. The grant then
// stays current until the next acquisition.
func TestAReleaseIsNotHeldUpByPostgreSQL(t *testing.T) {
	t.Parallel()
	for name, strike := range map[string]func(t *testing.T, r *relay, pg testenv.PG) (end func()){
		"slow": func(t *testing.T, _ *relay, pg testenv.PG) func() {
			t.Helper()
			tx, err := pg.Pool(t).Begin(t.Context())
			if err == nil {
				_, err = tx.Exec(t.Context(), `LOCK TABLE fence.arms IN EXCLUSIVE MODE`)
			}
			if err != nil {
				t.Fatal(err)
			}
			return func() { _ = tx.Rollback(t.Context()) }
		},
		"frozen": func(_ *testing.T, r *relay, _ testenv.PG) func() { r.gate.Lock(); return r.gate.Unlock },
		"away":   func(_ *testing.T, r *relay, _ testenv.PG) func() { r.refuse(true); return func() { r.refuse(false) } },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pg := testenv.Postgres(t)
			guarded(t, pg)
			cfg := config(t, pg)
			direct := start(t, cfg)
			r := relayTo(t, pg.GatewayURL)
			cfg.BlobDir, cfg.Buckets = t.TempDir(), nil
			cfg.PostgresURL = r.url
			c := start(t, cfg)
			l := c.acquire("orders/1001", "1m")
			end := strike(t, r, pg)
			begun := time.Now()
			c.want(http.StatusNoContent, "POST", "/v1/leases/release", map[string]string{"handle": l.handle})
			if took := time.Since(begun); took > 8*time.Second { // half a second, plus the delay of a busy machine
				t.Errorf("the release took %v", took)
			}
			if direct.locked("orders/1001") {
				t.Error("the lock is not free")
			}
			end()
			next := direct.acquire("orders/1001", "1m")
			if _, err := direct.connect(pg, next).Exec(t.Context(), updateOrder, "next"); err != nil {
				t.Errorf("the next holder: %v", err)
			}
			if _, err := direct.connect(pg, l).Exec(t.Context(), updateOrder, "stale"); err == nil {
				t.Error("the holder before still writes")
			}
		})
	}
}

// relay stands between a gateway and PostgreSQL. Nothing passes while its gate is locked.
type relay struct {
	url  string
	gate sync.RWMutex

	mu      sync.Mutex
	refused bool
	conns   []net.Conn
}

func relayTo(t *testing.T, url string) *relay {
	t.Helper()
	cfg, err := pgconn.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	host, port, _ := net.SplitHostPort(ln.Addr().String())
	r := &relay{url: "postgres://" + cfg.User + ":" + cfg.Password + "@" + net.JoinHostPort(host, port) + "/" + cfg.Database + "?sslmode=disable"}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			near, err := ln.Accept()
			if err != nil {
				return
			}
			network, address := pgconn.NetworkAddress(cfg.Host, cfg.Port)
			far, err := net.Dial(network, address)
			if err != nil || !r.add(near, far) {
				_ = near.Close()
				continue
			}
			running.Go(func() { r.pass(near, far) })
			running.Go(func() { r.pass(far, near) })
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		r.refuse(true)
		running.Wait()
	})
	return r
}

func (r *relay) add(conns ...net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refused {
		for _, c := range conns {
			_ = c.Close()
		}
		return false
	}
	r.conns = append(r.conns, conns...)
	return true
}

// refuse closes open connections and refuses new ones.
func (r *relay) refuse(yes bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refused = yes
	for _, c := range r.conns {
		_ = c.Close()
	}
	r.conns = nil
}

func (r *relay) pass(to, from net.Conn) {
	defer func() { _, _ = to.Close(), from.Close() }()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		r.gate.RLock()
		_, writeErr := to.Write(buf[:n])
		r.gate.RUnlock()
		if err != nil || writeErr != nil {
			return
		}
	}
}
