package pgfence_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
)

func batchOf(statements ...string) *pgx.Batch {
	b := &pgx.Batch{}
	for _, sql := range statements {
		b.Queue(sql)
	}
	return b
}

const insertWork = `INSERT INTO work (token) VALUES (34)`

// A fence costs no round trip beyond BEGIN, the statements and COMMIT. As a batch all of it takes one.
func TestRoundTrips(t *testing.T) {
	t.Parallel()
	w := setupMany(t)
	a, b := w.acquire(t, orders, 34), w.acquire(t, users, 1)
	var line wire
	pool := line.pool(t, w.pg.WriterURL, pgx.QueryExecModeCacheStatement)
	three := func(tx pgx.Tx) error {
		for range 3 {
			if _, err := tx.Exec(t.Context(), insertWork); err != nil {
				return err
			}
		}
		return nil
	}
	for name, c := range map[string]struct {
		run  func() error
		want int32
	}{
		"plain": {func() error { return pgx.BeginFunc(t.Context(), pool, func(pgx.Tx) error { return nil }) }, 2},
		"InTx":  {func() error { return pgfence.InTx(t.Context(), pool, a, three) }, 1 + 3 + 1},
		"of two": {func() error {
			return pgfence.InTxAll(t.Context(), pool, pgfence.TxOptions{}, []fence.Grant{a, b}, three)
		}, 1 + 3 + 1},
		"batch": {func() error {
			_, err := pgfence.ExecBatch(t.Context(), pool, pgx.TxOptions{}, []fence.Grant{a}, batchOf(insertWork, insertWork, insertWork))
			return err
		}, 1},
	} {
		for range 3 { // the first rounds prepare the statements
			line.trips.Store(0)
			if err := c.run(); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		if got := line.trips.Load(); got != c.want {
			t.Errorf("%s: %d round trips, want %d", name, got, c.want)
		}
	}
}

func TestExecBatchCommitsAllOrNothing(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(t, `ALTER TABLE work ADD CONSTRAINT one UNIQUE (note) DEFERRABLE INITIALLY DEFERRED`)
	g := w.acquire(t, orders, 34)
	stale := w.acquire(t, "other", 1)
	w.acquire(t, "other", 2)
	held, err := w.writer.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer held.Release()
	for name, db := range map[string]pgfence.Beginner{"pool": w.writer, "connection": w.session(t), "pooled connection": held} {
		before := rows(t, w)
		run := func(grants []fence.Grant, batch *pgx.Batch) ([]pgconn.CommandTag, error) {
			return pgfence.ExecBatch(t.Context(), db, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadWrite}, grants, batch)
		}
		tags, err := run([]fence.Grant{g}, batchOf(insertWork, `UPDATE work SET token = token`))
		if err != nil || fmt.Sprint(tags) != fmt.Sprintf("[INSERT 0 1 UPDATE %d]", before+1) {
			t.Errorf("%s: %v, %v", name, tags, err)
		}
		for what, c := range map[string]struct {
			grants []fence.Grant
			batch  *pgx.Batch
			want   func(error) bool
		}{
			"stale":             {[]fence.Grant{g, stale}, batchOf(insertWork), func(err error) bool { return errors.Is(err, fence.ErrStale) }},
			"no grant":          {nil, batchOf(insertWork), func(err error) bool { return errors.Is(err, fence.ErrNoGrant) }},
			"a statement fails": {[]fence.Grant{g}, batchOf(insertWork, `SELECT 1/0`, insertWork), func(err error) bool { return refusalOf(t, err).Code == "22012" }},
			"no such table":     {[]fence.Grant{g}, batchOf(insertWork, `SELECT FROM nothing`), func(err error) bool { return refusalOf(t, err).Code == "42P01" }},
			"COMMIT fails":      {[]fence.Grant{g}, batchOf(`INSERT INTO work (note) VALUES ('x'), ('x')`), func(err error) bool { return refusalOf(t, err).Code == "23505" }},
			"it rolls back":     {[]fence.Grant{g}, batchOf(insertWork, `ROLLBACK`), func(err error) bool { return err != nil }},
		} {
			if _, err := run(c.grants, c.batch); !c.want(err) || errors.Is(err, fence.ErrUnknown) {
				t.Errorf("%s, %s: %v", name, what, err)
			}
			if n := rows(t, w); n != before+1 {
				t.Errorf("%s, %s: %d rows, want %d", name, what, n, before+1)
			}
		}
	}
	_, err = pgfence.ExecBatch(t.Context(), w.writer, pgx.TxOptions{}, []fence.Grant{g}, batchOf(insertWork, `COMMIT`, `SELECT 1/0`))
	if !errors.Is(err, pgfence.ErrTxEnded) {
		t.Errorf("it commits, and fails then: %v", err)
	}
	withFn := batchOf(insertWork)
	withFn.QueuedQueries[0].Exec(func(pgconn.CommandTag) error { return nil })
	if _, err = pgfence.ExecBatch(t.Context(), w.writer, pgx.TxOptions{}, []fence.Grant{g}, withFn); !errors.Is(err, fence.ErrInvalid) {
		t.Errorf("a callback: %v", err)
	}
}

func TestALostBatchIsUnknown(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(t, orders, 34)
	var line wire
	pool := line.pool(t, w.pg.WriterURL, pgx.QueryExecModeCacheStatement)
	run := func(ctx context.Context) error {
		_, err := pgfence.ExecBatch(ctx, pool, pgx.TxOptions{}, []fence.Grant{g}, batchOf(insertWork))
		return err
	}
	if err := run(t.Context()); err != nil {
		t.Fatal(err)
	}
	line.lose.Store(1)
	if err := run(t.Context()); !errors.Is(err, fence.ErrUnknown) {
		t.Errorf("got %v", err)
	}
	w.waitFor(t, "it was done all the same", `SELECT count(*) = 2 FROM work`)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := run(ended); !errors.Is(err, context.Canceled) || errors.Is(err, fence.ErrUnknown) {
		t.Errorf("the context ended before: %v", err)
	}
}
