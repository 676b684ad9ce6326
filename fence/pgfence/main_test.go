package pgfence_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/testenv"
)

func TestMain(m *testing.M) { testenv.VerifyMain(m, testenv.LeakOptions()...) }

// orders is the resource that the table of [world] needs.
const orders = "orders/1001"

// world is a database with a table `work` that needs a grant of [orders].
type world struct {
	pg     testenv.PG
	admin  *pgxpool.Pool  // the superuser
	writer *pgxpool.Pool  // a login that is fence_writer
	fence  *pgfence.Fence // over a login that is fence_gateway
	how    presentation   // how [world.begin] presents a grant
}

func setup(t testing.TB, opts ...pgfence.Option) world {
	t.Helper()
	pg := testenv.Postgres(t)
	w := world{
		pg:     pg,
		admin:  pg.Pool(t),
		writer: testenv.PoolOf(t, pg.WriterURL),
		fence:  pgfence.New(testenv.PoolOf(t, pg.GatewayURL), opts...),
	}
	pgfence.GiveTime(w.fence)
	w.exec(t, `CREATE TABLE work (id bigserial PRIMARY KEY, token bigint, note text)`)
	w.exec(t, `GRANT ALL ON ALL TABLES IN SCHEMA public TO PUBLIC`)
	w.exec(t, `GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO PUBLIC`)
	w.exec(t, `SELECT fence.protect('work', resource => $1)`, orders)
	return w
}

// exec runs a statement as the superuser.
func (w world) exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	if _, err := w.admin.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// value asks for one value as the superuser.
func value[T any](t testing.TB, w world, sql string, args ...any) T {
	t.Helper()
	rows, _ := w.admin.Query(t.Context(), sql, args...)
	v, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[T])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// acquire arms a resource with a fresh seal and returns the grant.
func (w world) acquire(t testing.TB, resource string, token fence.Token) fence.Grant {
	t.Helper()
	g := fence.Grant{Resource: resource, Token: token, Seal: fence.NewSeal()}
	if err := w.fence.Arm(t.Context(), arming(g)); err != nil {
		t.Fatalf("arm %s: %v", g, err)
	}
	return g
}

func arming(g fence.Grant) fence.Arming {
	return fence.Arming{Resource: g.Resource, Token: g.Token, SealHash: g.Seal.Hash(), Holder: "test"}
}

// session connects as the writer; it is closed with the test.
func (w world) session(t testing.TB, options ...string) *pgx.Conn {
	t.Helper()
	return connect(t, w.pg.WriterURL, options...)
}

// connect opens one connection, with startup options such as "-c name=value".
func connect(t testing.TB, address string, options ...string) *pgx.Conn {
	t.Helper()
	config, err := pgx.ParseConfig(address)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range options {
		config.RuntimeParams["options"] += " " + o
	}
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

// begin begins a transaction that presents g, at an isolation level.
func begin(t testing.TB, conn *pgx.Conn, level pgx.TxIsoLevel, g fence.Grant) pgx.Tx {
	t.Helper()
	tx, err := conn.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
	if err != nil {
		t.Fatal(err)
	}
	set(t, tx, fence.EscapeResource(g.Resource), g.Presented())
	return tx
}

// set presents the grant by settings, without the check that Use makes.
func set(t testing.TB, tx pgx.Tx, resource, token string) {
	t.Helper()
	const sql = `SELECT set_config('fence.resource', $1, true), set_config('fence.token', $2, true)`
	if _, err := tx.Exec(t.Context(), sql, resource, token); err != nil {
		t.Fatal(err)
	}
}

// write is one guarded write.
func write(ctx context.Context, tx pgx.Tx, token fence.Token) error {
	_, err := tx.Exec(ctx, `INSERT INTO work (token) VALUES ($1)`, int64(token))
	return err
}

// refusalOf returns the error of PostgreSQL in err's chain.
func refusalOf(t testing.TB, err error) *pgconn.PgError {
	t.Helper()
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		t.Fatalf("no refusal by PostgreSQL, but: %v", err)
	}
	return pg
}

func wantCode(t testing.TB, err error, code string) {
	t.Helper()
	if got := refusalOf(t, err).Code; got != code {
		t.Fatalf("SQLSTATE %s, want %s: %v", got, code, err)
	}
}

// waitFor polls until the query returns true, that is, until another session has got to a certain point.
func (w world) waitFor(t testing.TB, what, sql string, args ...any) {
	t.Helper()
	testenv.Eventually(t, what, func() bool { return value[bool](t, w, sql, args...) })
}

// poolWith connects with one configuration changed; the pool is closed with the test.
func poolWith(t testing.TB, address string, change func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(address)
	if err != nil {
		t.Fatal(err)
	}
	change(config)
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

var levels = []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable}

// counter numbers things that must be unique in the cluster, such as gids.
var counter atomic.Int64
