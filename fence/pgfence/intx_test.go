package pgfence_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
)

func rows(t testing.TB, w world) int {
	t.Helper()
	return value[int](t, w, `SELECT count(*) FROM work`)
}

func TestInTxCommits(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(t, orders, 34)
	conn := w.session(t)
	held, err := w.writer.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer held.Release()
	for name, db := range map[string]pgfence.Beginner{"pool": w.writer, "connection": conn, "pooled connection": held} {
		for _, level := range levels {
			before := rows(t, w)
			opts := pgx.TxOptions{IsoLevel: level}
			err := pgfence.InTxWith(t.Context(), db, opts, g, func(tx pgx.Tx) error {
				nested, err := tx.Begin(t.Context()) // savepoints work
				if err != nil {
					return err
				}
				if err := write(t.Context(), nested, g.Token); err != nil {
					return err
				}
				if err := nested.Rollback(t.Context()); err != nil {
					return err
				}
				var got string
				if err := tx.QueryRow(t.Context(), `SHOW transaction_isolation`).Scan(&got); err != nil || got != string(level) {
					t.Errorf("%q, %v, want %q", got, err, level)
				}
				return write(t.Context(), tx, g.Token)
			})
			if err != nil || rows(t, w) != before+1 {
				t.Errorf("%s, %s: %v, %d rows more", name, level, err, rows(t, w)-before)
			}
		}
	}
}

func TestInTxWritesNothingWhenItFails(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(t, orders, 34)
	stale := w.acquire(t, "other", 1)
	w.acquire(t, "other", 2)
	boom := errors.New("boom")
	ctx, cancel := context.WithCancel(t.Context())
	cases := []struct {
		name  string
		grant fence.Grant
		fn    func(pgx.Tx) error
		want  error
	}{
		{"fn's error", g, func(pgx.Tx) error { return boom }, boom},
		{"malformed", fence.Grant{Resource: "a*", Token: 1}, nil, fence.ErrInvalid},
		{"stale", stale, nil, fence.ErrStale},
		{"unsealed", fence.Grant{Resource: orders, Token: 34}, nil, fence.ErrNeverIssued},
		{"of another resource", w.acquire(t, "third", 1), func(tx pgx.Tx) error { return write(t.Context(), tx, 0) }, fence.ErrWrongResource},
		{"a swallowed error", g, func(tx pgx.Tx) error { _, _ = tx.Exec(t.Context(), `SELECT 1/0`); return nil }, pgx.ErrTxCommitRollback},
		{"fn commits", g, func(tx pgx.Tx) error { _ = tx.Commit(t.Context()); return nil }, pgfence.ErrTxEnded},
		{"fn rolls back", g, func(tx pgx.Tx) error { _ = tx.Rollback(t.Context()); return nil }, pgfence.ErrTxEnded},
		{"fn's connection is closed", g, func(tx pgx.Tx) error { return tx.Conn().Close(t.Context()) }, pgconn.ErrConnClosed},
		{"fn's context ends", g, func(pgx.Tx) error { cancel(); return ctx.Err() }, context.Canceled},
		{"the context ended", g, nil, context.Canceled}, // ctx is the same
	}
	for _, c := range cases {
		err := pgfence.InTx(ctx, w.writer, c.grant, func(tx pgx.Tx) error {
			if c.fn == nil {
				t.Errorf("%s: fn ran", c.name)
				return nil
			}
			if c.grant == g {
				if err := write(t.Context(), tx, 0); err != nil {
					return err
				}
			}
			return c.fn(tx)
		})
		if !errors.Is(err, c.want) || errors.Is(err, fence.ErrUnknown) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), c.grant.Seal.Reveal()) && !c.grant.Seal.IsZero() {
			t.Errorf("%s: the seal shows in %v", c.name, err)
		}
	}
	if n := rows(t, w); n != 0 {
		t.Errorf("%d rows", n)
	}
}

func TestInTxRollsBackWhenFnPanics(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(t, orders, 34)
	func() {
		defer func() {
			if r := recover(); r != "boom" {
				t.Errorf("recovered %v", r)
			}
		}()
		_ = pgfence.InTx(t.Context(), w.writer, g, func(tx pgx.Tx) error {
			_ = write(t.Context(), tx, 0)
			panic("boom")
		})
	}()
	if rows(t, w) != 0 || w.writer.Stat().AcquiredConns() != 0 {
		t.Errorf("%d rows, %d connections lost", rows(t, w), w.writer.Stat().AcquiredConns())
	}
}

// If fn commits by itself, that can't be undone, but InTx reports it.
func TestInTxNoticesThatFnEndedTheTransaction(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(t, orders, 34)
	for _, statements := range [][]string{
		{"COMMIT"},
		{"ROLLBACK"},
		{"COMMIT", "BEGIN"},
		{"COMMIT AND CHAIN"},
		{"ROLLBACK AND CHAIN"},
		{"COMMIT", "BEGIN", "SELECT fence.use('" + orders + "', '" + g.Presented() + "')"},
	} {
		err := pgfence.InTx(t.Context(), w.writer, g, func(tx pgx.Tx) error {
			for _, sql := range statements {
				if _, err := tx.Exec(t.Context(), sql); err != nil {
					t.Errorf("%s: %v", sql, err)
				}
			}
			return nil
		})
		if !errors.Is(err, pgfence.ErrTxEnded) {
			t.Errorf("%v: %v", statements, err)
		}
	}
	if err := pgfence.InTx(t.Context(), w.writer, g, func(tx pgx.Tx) error { return write(t.Context(), tx, 34) }); err != nil {
		t.Errorf("the pool is not usable afterwards: %v", err)
	}
}

func TestInTxNoticesRowsThatWereLeftOpen(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(t, orders, 34)
	err := pgfence.InTx(t.Context(), w.writer, g, func(tx pgx.Tx) error {
		if err := write(t.Context(), tx, 0); err != nil {
			return err
		}
		_, err := tx.Query(t.Context(), `SELECT generate_series(1, 100000)`) //nolint:sqlclosecheck // the mistake under test
		return err
	})
	if err == nil || errors.Is(err, fence.ErrUnknown) || rows(t, w) != 0 {
		t.Errorf("got %v and %d rows", err, rows(t, w))
	}
}

func TestInTxDoesNotNest(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(t, orders, 34)
	err := pgfence.InTx(t.Context(), w.writer, g, func(tx pgx.Tx) error {
		return pgfence.InTx(t.Context(), tx, g, func(pgx.Tx) error { t.Error("fn ran"); return nil })
	})
	if err == nil {
		t.Error("it did")
	}
}

// A failure reported by COMMIT itself is definite.
func TestAFailedCommitIsNotUnknown(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(t, `ALTER TABLE work ADD CONSTRAINT one UNIQUE (note) DEFERRABLE INITIALLY DEFERRED`)
	g := w.acquire(t, orders, 34)
	err := pgfence.InTx(t.Context(), w.writer, g, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), `INSERT INTO work (note) VALUES ('x'), ('x')`)
		return err
	})
	if errors.Is(err, fence.ErrUnknown) {
		t.Error(err)
	}
	wantCode(t, err, "23505")
}

// A write to a table without a guard is covered as well, because InTx presents the grant at the beginning.
func TestInTxCoversUnguardedTables(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(t, `CREATE TABLE open (); GRANT ALL ON open TO PUBLIC`)
	g := w.acquire(t, orders, 34)
	err := pgfence.InTx(t.Context(), w.writer, g, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `INSERT INTO open DEFAULT VALUES`); err != nil {
			return err
		}
		w.acquire(t, orders, 35)
		return nil
	})
	if err == nil || value[int](t, w, `SELECT count(*) FROM open`) != 0 {
		t.Errorf("a stale write landed; InTx said %v", err)
	}
}

// wire is shared by a pool's connections: a count of round trips, and the number of answers or requests still to be
// lost. A request whose answer is lost is executed, but the caller never gets the answer. A dropped request is never
// executed.
type wire struct {
	lose, drop atomic.Int32
	trips      atomic.Int32 // how often PostgreSQL said that it waits for the next request

	mu   sync.Mutex
	sent bytes.Buffer
}

type wireConn struct {
	net.Conn
	*wire
	head []byte // of the message that is being received
	rest int    // so many bytes of it are still to come
}

// receive counts the messages ReadyForQuery.
func (c *wireConn) receive(b []byte) {
	for len(b) > 0 {
		if n := min(c.rest, len(b)); n > 0 {
			c.rest, b = c.rest-n, b[n:]
			continue
		}
		c.head, b = append(c.head, b[0]), b[1:]
		if len(c.head) == 5 { // its type and its length, which counts itself
			if c.head[0] == 'Z' {
				c.trips.Add(1)
			}
			c.rest, c.head = int(binary.BigEndian.Uint32(c.head[1:]))-4, nil
		}
	}
}

func (c *wireConn) Write(b []byte) (int, error) {
	if c.drop.Load() > 0 {
		c.drop.Add(-1)
		_ = c.Close()
		return len(b), nil
	}
	c.mu.Lock()
	c.sent.Write(b)
	c.mu.Unlock()
	return c.Conn.Write(b)
}

func (c *wireConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err == nil {
		c.receive(b[:n])
	}
	if err == nil && c.lose.Load() > 0 {
		c.lose.Add(-1)
		_ = c.Close()
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}

func (w *wire) pool(t testing.TB, address string, mode pgx.QueryExecMode) *pgxpool.Pool {
	t.Helper()
	return poolWith(t, address, func(c *pgxpool.Config) {
		c.ConnConfig.DefaultQueryExecMode = mode
		c.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false } // a ping of an idle connection would use up the lost answer
		c.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			return &wireConn{Conn: conn, wire: w}, err
		}
	})
}

func TestArmAsksAgainWhenTheAnswerWasLost(t *testing.T) {
	t.Parallel()
	w := setup(t)
	var line wire
	pool := line.pool(t, w.pg.GatewayURL, pgx.QueryExecModeCacheStatement)
	f := pgfence.New(pool)
	if err := pool.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	line.lose.Store(1)
	first := fence.Arming{Resource: orders, Token: 34, SealHash: fence.NewSeal().Hash()}
	if err := f.Arm(t.Context(), first); err != nil {
		t.Errorf("one answer lost: %v", err)
	}
	if err := f.Arm(t.Context(), first); err != nil { // prepares the statement, so that each later answer belongs to an execution
		t.Errorf("once more: %v", err)
	}
	line.lose.Store(1000)
	err := f.Arm(t.Context(), fence.Arming{Resource: orders, Token: 35, SealHash: fence.NewSeal().Hash()})
	if !errors.Is(err, fence.ErrUnknown) {
		t.Errorf("all answers lost: %v", err)
	}
	w.waitFor(t, "the raise was done all the same", `SELECT token = 35 FROM fence.resources`)
	line.lose.Store(0)
	if _, err := f.Revoke(t.Context(), orders, ""); err != nil {
		t.Error(err)
	}
	if err := pool.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	line.lose.Store(1)
	if _, err := f.Revoke(t.Context(), orders, ""); !errors.Is(err, fence.ErrUnknown) {
		t.Errorf("revoke: %v", err)
	}
}

func TestArmThatNeverReachedTheServerIsDefinite(t *testing.T) {
	t.Parallel()
	pool := poolWith(t, "postgres://nobody@127.0.0.1:1/none?connect_timeout=2", func(*pgxpool.Config) {})
	err := pgfence.New(pool).Arm(t.Context(), fence.Arming{Resource: orders, Token: 1, SealHash: fence.NewSeal().Hash()})
	if err == nil || errors.Is(err, fence.ErrUnknown) {
		t.Errorf("got %v", err)
	}
}

func TestALostCommitIsUnknown(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(t, orders, 34)
	var line wire
	pool := line.pool(t, w.pg.WriterURL, pgx.QueryExecModeCacheStatement)
	err := pgfence.InTx(t.Context(), pool, g, func(tx pgx.Tx) error {
		err := write(t.Context(), tx, g.Token)
		line.lose.Store(1)
		return err
	})
	if !errors.Is(err, fence.ErrUnknown) {
		t.Errorf("got %v", err)
	}
	w.waitFor(t, "the commit was done all the same", `SELECT count(*) = 1 FROM work`)

	// The connection was lost before COMMIT was sent: nothing was written, and the error says so.
	err = pgfence.InTx(t.Context(), pool, g, func(tx pgx.Tx) error {
		line.lose.Store(1)
		return write(t.Context(), tx, g.Token)
	})
	if err == nil || errors.Is(err, fence.ErrUnknown) {
		t.Errorf("got %v", err)
	}
}

// The seal is sent as a parameter, even if the driver is set to write arguments into the statement's text.
func TestTheSealIsNeverALiteral(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(t, orders, 34)
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		var line wire
		pool := line.pool(t, w.pg.WriterURL, mode)
		err := pgfence.InTx(t.Context(), pool, g, func(tx pgx.Tx) error {
			if err := pgfence.Use(t.Context(), tx, g); err != nil {
				return err
			}
			return write(t.Context(), tx, g.Token)
		})
		if err != nil {
			t.Fatal(err)
		}
		pool.Close() // ends all writing
		sent := line.sent.Bytes()
		if !bytes.Contains(sent, []byte(g.Presented())) {
			t.Errorf("%v: the test does not see the seal", mode)
		}
		if bytes.Contains(sent, []byte("'"+g.Presented())) {
			t.Errorf("%v: the seal is a literal", mode)
		}
	}
}
