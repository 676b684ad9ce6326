//go:build unix

package gateway_test

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/smithy-go"
	awshttp "github.com/aws/smithy-go/transport/http"

	goclient "github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/internal/testenv"
)

func TestStaleWriterIsRefusedOnEveryFace(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	guarded(t, pg)
	c := start(t, config(t, pg))
	for name, over := range map[string]func(lease) lease{
		"released": func(l lease) lease {
			c.want(http.StatusNoContent, "POST", "/v1/leases/release", map[string]string{"handle": l.handle})
			return c.acquire("orders/1001", "30s")
		},
		"expired": func(l lease) lease {
			c.runOut(l, pg)
			return c.acquire("orders/1001", "30s")
		},
	} {
		a := c.acquire("orders/1001", "30s")
		aConn := c.connect(pg, a)
		if _, err := aConn.Exec(t.Context(), updateOrder, "by a"); err != nil {
			t.Fatalf("%s: write under the current grant: %v", name, err)
		}
		aCreds := c.want(http.StatusOK, "POST", "/v1/leases/credentials", map[string]string{"handle": a.handle})
		if err := c.put(aCreds, "1001/invoice.txt", "by a"); err != nil {
			t.Fatalf("%s: upload under the current grant: %v", name, err)
		}

		b := over(a)
		if b.token <= a.token && len(b.token) <= len(a.token) {
			t.Errorf("%s: token %s after %s", name, b.token, a.token)
		}
		bConn := c.connect(pg, b)
		if _, err := bConn.Exec(t.Context(), updateOrder, "by b"); err != nil {
			t.Fatalf("%s: write of the next holder: %v", name, err)
		}
		if err := c.upload(b, "1001/invoice.txt", "by b"); err != nil {
			t.Fatalf("%s: upload of the next holder: %v", name, err)
		}

		if _, err := aConn.Exec(t.Context(), updateOrder, "by a again"); sqlState(err) != "ZF001" {
			t.Errorf("%s: stale write in an open session: %v; want ZF001", name, err)
		}
		if _, err := c.connect(pg, a).Exec(t.Context(), updateOrder, "by a again"); sqlState(err) != "ZF001" {
			t.Errorf("%s: stale write in a new session: %v; want ZF001", name, err)
		}
		refused := c.want(http.StatusPreconditionFailed, "POST", "/v1/sql", map[string]any{"statements": []any{map[string]any{"sql": updateOrder, "args": []string{"by a again"}}}},
			"Fencing-Resource", "orders/1001", "Fencing-Token", a.grant)
		if refused.text("code") != "ZF001" || refused.text("presented") != a.token || refused.text("recorded") != b.token {
			t.Errorf("%s: stale SQL over HTTP: %v", name, refused.Body)
		}
		err := c.put(aCreds, "1001/invoice.txt", "by a again")
		var status *awshttp.ResponseError
		var code smithy.APIError
		if !errors.As(err, &status) || status.HTTPStatusCode() != http.StatusPreconditionFailed || !errors.As(err, &code) || code.ErrorCode() != "StaleFencingToken" {
			t.Errorf("%s: stale upload: %v; want 412 StaleFencingToken", name, err)
		}
		stale := c.want(http.StatusPreconditionFailed, "POST", "/v1/leases/credentials", map[string]string{"handle": a.handle})
		if stale.text("code") != "ZF001" {
			t.Errorf("%s: credentials of a stale lease: %v", name, stale.Body)
		}

		var is string
		if err := bConn.QueryRow(t.Context(), "SELECT status FROM orders WHERE id = 1001").Scan(&is); err != nil || is != "by b" {
			t.Errorf("%s: the row holds %q, %v; want what the current holder wrote", name, is, err)
		}
		c.want(http.StatusNoContent, "POST", "/v1/leases/release", map[string]string{"handle": b.handle})
	}
}

func TestSessionsLearnTheOtherPortsFromTheAPI(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	c := start(t, config(t, pg))
	a := c.want(http.StatusOK, "GET", "/v1/endpoints", nil)
	postgres, _ := a.Body["pg"].(map[string]any)
	s3, _ := a.Body["s3"].(map[string]any)
	host, port, _ := net.SplitHostPort(c.g.Addrs().PG)
	if postgres["host"] != host || fmt.Sprint(postgres["port"]) != port || postgres["database"] != pg.Database {
		t.Errorf("postgres: %v, want %s", postgres, c.g.Addrs().PG)
	}
	if s3["url"] != "http://"+c.g.Addrs().S3 {
		t.Errorf("s3: %v, want %s", s3, c.g.Addrs().S3)
	}
	untilReady(c)
}

// A newer release's schema says which older programs it still serves.
func TestAGatewayThatTheSchemaNoLongerServesIsNotReady(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	c := start(t, config(t, pg))
	untilReady(c)
	for _, change := range []string{`UPDATE fencegate.code SET min_program = 999 WHERE name = 'fence'`, `UPDATE fencegate.code SET min_program = 1`} {
		if _, err := pg.Pool(t).Exec(t.Context(), change); err != nil {
			t.Fatal(err)
		}
		status := http.StatusOK
		if strings.Contains(change, "999") {
			status = http.StatusServiceUnavailable
		}
		untilAnswered(c, func(a answer) bool { return a.Status == status })
	}
}

func TestSQLOverHTTPIsOneTransaction(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	guarded(t, pg)
	c := start(t, config(t, pg))
	l := c.acquire("orders/1001", "30s")
	sql := func(status int, statements ...map[string]any) answer {
		t.Helper()
		return c.want(status, "POST", "/v1/sql", map[string]any{"statements": statements}, "Fencing-Resource", l.resource, "Fencing-Token", l.grant)
	}
	a := sql(http.StatusUnprocessableEntity, map[string]any{"sql": updateOrder, "args": []any{"half"}}, map[string]any{"sql": "INSERT INTO orders VALUES (1001, 'twice')"})
	if a.text("sqlstate") != "23505" || a.Body["statement"] != 1. {
		t.Errorf("SQL error in the middle: %v", a.Body)
	}
	a = sql(http.StatusOK, map[string]any{"sql": "SELECT status FROM orders"})
	if got := fmt.Sprint(a.Body["results"]); !strings.Contains(got, "[[new]]") {
		t.Errorf("after the error: %s; want the row untouched", got)
	}
	sql(http.StatusBadRequest, map[string]any{"sql": "/* */ ; COMMIT"})
	other := c.acquire("orders/2002", "30s")
	l = other
	if a := sql(http.StatusForbidden, map[string]any{"sql": updateOrder, "args": []any{"x"}}); a.text("code") != "ZF004" || a.text("needed") != "orders/1001" {
		t.Errorf("wrong table for the resource: %v", a.Body)
	}
}

func TestOneOfManyWaitersGetsTheLeaseAtATime(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	c := start(t, config(t, pg))
	const waiters = 5
	tokens := make(chan string)
	var all sync.WaitGroup
	for range waiters {
		all.Go(func() {
			l := c.want(http.StatusCreated, "POST", "/v1/leases", map[string]string{"resource": "r", "ttl": "30s", "wait": "60s"})
			tokens <- l.text("token")
			c.want(http.StatusNoContent, "POST", "/v1/leases/release", map[string]string{"handle": l.text("handle")})
		})
	}
	go func() { all.Wait(); close(tokens) }()
	last, holders := int64(0), 0
	for token := range tokens { // ends when the last of them has released
		n, err := strconv.ParseInt(token, 10, 64)
		if err != nil || n <= last {
			t.Errorf("token %d after %d: %v", n, last, err)
		}
		last = n
		holders++
	}
	if holders != waiters {
		t.Errorf("%d of %d waiters got the lease", holders, waiters)
	}
	if a := c.want(http.StatusOK, "GET", "/v1/resources/r", nil); a.text("token") != fmt.Sprint(last) {
		t.Errorf("the fence stands at %v, want %d", a.Body, last)
	}
}

func TestHeldResourceSaysWhenToTryAgain(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	c := start(t, config(t, pg))
	l := c.acquire("r", "1m")
	a := c.want(http.StatusConflict, "POST", "/v1/leases", map[string]string{"resource": "r"})
	if ms, _ := a.Body["retry_after_ms"].(float64); a.text("code") != "held" || ms <= 0 || ms > 60_000 || a.text("holder") != "test" {
		t.Errorf("%v", a.Body)
	}
	a = c.want(http.StatusOK, "POST", "/v1/leases/renew", map[string]string{"handle": l.handle, "ttl": "30s"})
	if ms, _ := a.Body["valid_ms"].(float64); ms <= 0 || ms > 30_000 {
		t.Errorf("renewed: %v", a.Body)
	}
	for range 2 { // a second stop is no error
		c.want(http.StatusNoContent, "POST", "/v1/leases/release", map[string]string{"handle": l.handle})
	}
	if a := c.want(http.StatusGone, "POST", "/v1/leases/renew", map[string]string{"handle": l.handle}); a.text("code") != "lease_lost" {
		t.Errorf("renewal after release: %v", a.Body)
	}
	if a := c.want(http.StatusOK, "GET", "/v1/resources/r", nil); a.Body["locked"] != false || a.text("token") != l.token {
		t.Errorf("%v", a.Body)
	}
	c.want(http.StatusNotFound, "GET", "/v1/resources/never", nil)
}

// The first requests of a gateway arrive together; their new connections must not raise a doubt about PostgreSQL.
func TestAColdGatewayServesABurst(t *testing.T) {
	t.Parallel()
	c := start(t, config(t, testenv.Postgres(t)))
	var all sync.WaitGroup
	for i := range 200 {
		all.Go(func() {
			a := c.do(http.MethodPost, "/v1/leases", map[string]string{"resource": fmt.Sprint("orders/", i), "ttl": "60s", "wait": "30s", "holder": "test"})
			if a.Status != http.StatusCreated {
				t.Errorf("%d: %v", a.Status, a.Body)
			}
		})
	}
	all.Wait()
}

// In the order of docs/operations.md each gateway accepts what the others issue. In another order a client that knows
// all gateways keeps its lease.
func TestAMasterKeyIsReplacedUnderALease(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	cfg := config(t, pg)
	next := "k2:" + strings.Repeat("a5", 32)
	under := func(keys ...string) *client {
		own := cfg
		own.MasterKey = strings.Join(keys, "\n")
		return start(t, own)
	}
	before, added, used, after := under(masterKey), under(masterKey, next), under(next, masterKey), under(next)
	for _, pair := range [][2]*client{{before, added}, {added, used}, {used, after}} {
		for i, issuer := range pair {
			l, other := issuer.acquire("r", "1m"), pair[1-i]
			other.want(http.StatusOK, "POST", "/v1/leases/renew", map[string]string{"handle": l.handle, "ttl": "1m"})
			other.want(http.StatusNoContent, "POST", "/v1/leases/release", map[string]string{"handle": l.handle})
		}
	}
	l := used.acquire("r", "1m")
	a := before.want(http.StatusBadRequest, "POST", "/v1/leases/renew", map[string]string{"handle": l.handle, "ttl": "1m"})
	if !strings.Contains(a.text("detail"), "another master key") {
		t.Errorf("%v", a.Body)
	}
	both, err := goclient.New(goclient.Config{URL: "http://" + before.g.Addrs().API + ",http://" + used.g.Addrs().API})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := both.Renew(t.Context(), l.handle, time.Minute); err != nil {
		t.Errorf("a client of both gateways: %v", err)
	}
}
