//go:build unix

package objects

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/internal/testenv"
)

// wire is the network to PostgreSQL. It can hold answers back that PostgreSQL has
// given already, and counts what it was asked.
type wire struct {
	asked atomic.Int32
	came  chan struct{} // gets one for each answer that is held back

	mu    sync.Mutex
	held  chan struct{} // nil: nothing is held back
	conns []net.Conn
}

func (w *wire) dial(ctx context.Context, network, address string) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conns = append(w.conns, c)
	return &wired{c, w}, nil
}

// hold lets no answer through until the function that it returns is called.
func (w *wire) hold() (release func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	held := make(chan struct{})
	w.held = held
	w.asked.Store(0)
	return sync.OnceFunc(func() {
		w.mu.Lock()
		if w.held == held {
			w.held = nil
		}
		w.mu.Unlock()
		close(held)
	})
}

// cut ends all connections.
func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		_ = c.Close()
	}
	w.conns = nil
}

type wired struct {
	net.Conn

	w *wire
}

func (c *wired) Write(p []byte) (int, error) {
	if p[0] == 'B' { // Bind
		c.w.asked.Add(1)
	}
	return c.Conn.Write(p)
}

func (c *wired) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.w.mu.Lock()
	held := c.w.held
	c.w.mu.Unlock()
	if held != nil {
		c.w.came <- struct{}{}
		<-held
	}
	return n, err
}

// asking is look-ups in a database with a bucket.
type asking struct {
	*Reader

	t    *testing.T
	wire *wire
	pool *pgxpool.Pool // on the wire
	db   *pgxpool.Pool // beside it
}

func setUpLookups(t *testing.T, patience time.Duration) *asking {
	t.Helper()
	pg := testenv.Postgres(t)
	a := &asking{t: t, wire: &wire{came: make(chan struct{}, 1000)}, db: pg.Pool(t)}
	pc, err := pgxpool.ParseConfig(pg.GatewayURL)
	if err != nil {
		t.Fatal(err)
	}
	pc.MaxConns, pc.ConnConfig.DialFunc = 4, a.wire.dial
	pool, err := pgxpool.NewWithConfig(t.Context(), pc)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	a.pool = pool
	a.Reader = NewReader(NewDatabase(pool, 30*time.Second), nil, slog.New(slog.NewTextHandler(t.Output(), nil)))
	a.lookups.patience = patience
	a.exec("SELECT objects.create_bucket('b', 0, 'none')")
	for _, key := range []string{"first", "warm"} {
		a.write(key)
	}
	// Each statement is prepared on the one connection that there is so far.
	one := a.lookups.begin("b", "warm")
	two, three := a.lookups.begin("b", "warm"), a.lookups.begin("b", "first")
	for _, l := range []*Lookup{one, two, three} {
		if _, err := l.wait(); err != nil {
			t.Fatal(err)
		}
	}
	return a
}

func (a *asking) exec(sql string, args ...any) {
	a.t.Helper()
	if _, err := a.db.Exec(a.t.Context(), sql, args...); err != nil {
		a.t.Fatal(err)
	}
}

// write makes a new version current, and is acknowledged when it returns.
func (a *asking) write(key string) blob.ID {
	a.t.Helper()
	id := blob.NewID()
	a.exec(`WITH v AS (INSERT INTO objects.versions (id, bucket, key, blobs, blob_sizes, size, etag, attributes, resource, token)
		VALUES ($1, 'b', $2, ARRAY[$1, $3]::uuid[], '{3, 4}', 7, 'e-' || $2, '{"content_type": "text/plain", "part_checksums": ["x"]}', 'b', 1) RETURNING *)
		INSERT INTO objects.pointers (bucket, key, version, size, etag, modified_at) SELECT bucket, key, id, size, etag, created_at FROM v
		ON CONFLICT (bucket, key) DO UPDATE SET version = excluded.version`, UUID(id), key, UUID(blob.NewID()))
	return id
}

// endAfter is how long look-ups may take from now on; the set-up had longer.
func (a *asking) endAfter(timeout time.Duration) {
	a.lookups.mu.Lock()
	defer a.lookups.mu.Unlock()
	a.lookups.timeout, a.Reader.db.timeout = timeout, timeout
	a.lookups.due = time.Time{} // that of the timer that runs is for the longer one
}

// held begins a look-up whose answer is held back.
func (a *asking) held() (first *Lookup, release func()) {
	release = a.wire.hold()
	a.t.Cleanup(release)
	return a.lookups.begin("b", "first"), release
}

func (a *asking) nothingIsLeft() {
	a.t.Helper()
	a.lookups.mu.Lock()
	defer a.lookups.mu.Unlock()
	if len(a.lookups.underWay) != 0 || a.lookups.slow != 0 || len(a.lookups.waiting) != 0 {
		a.t.Errorf("%d questions are under way, %d slow, %d look-ups wait", len(a.lookups.underWay), a.lookups.slow, len(a.lookups.waiting))
	}
	limit := time.After(10 * time.Second)
	for a.pool.Stat().AcquiredConns() != 0 { // the pool ends a lost connection beside its user
		select {
		case <-limit:
			a.t.Fatalf("%d connections are not given back", a.pool.Stat().AcquiredConns())
		case <-time.After(time.Millisecond):
		}
	}
}
