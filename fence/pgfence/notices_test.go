package pgfence_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
)

// standby names a synchronous standby that is not connected. From then on commits wait.
func (s *testServer) standby(t *testing.T, w world, name string) {
	t.Helper()
	w.exec(t, `ALTER SYSTEM SET synchronous_standby_names = '`+name+`'`)
	w.exec(t, `SELECT pg_reload_conf()`)
	w.waitFor(t, "the server has read its configuration", `SELECT current_setting('synchronous_standby_names') = $1`, name)
	// Another process of the server makes commits wait, and it may reload the configuration later.
	for waits := name == ""; !waits; {
		done := later(func() error {
			_, err := w.admin.Exec(t.Context(), `SELECT pg_logical_emit_message(true, 'test', 'a transaction that writes')`)
			return err
		})
		for len(done) == 0 && !waits {
			waits = value[bool](t, w, waitsForStandby)
		}
		if err := cancelWaits(t, w, done); err != nil {
			t.Fatal(err)
		}
	}
}

// cancelWaits cancels the waits for the standby one after another, until done has a result.
func cancelWaits[T any](t *testing.T, w world, done <-chan T) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for tick := time.NewTicker(5 * time.Millisecond); ; {
		select {
		case result := <-done:
			tick.Stop()
			return result
		case <-tick.C:
			w.exec(t, `SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'`)
		case <-ctx.Done():
			t.Fatal("the wait timed out")
		}
	}
}

const waitsForStandby = `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep')`

func later(f func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return done
}

// If the wait of a commit for the synchronous standby is cancelled, a failover may undo the commit: its outcome is
// unknown.
func TestACommitThatDidNotReachTheStandbyIsUnknown(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	w := s.world(t)
	w.exec(t, `CREATE TABLE warns (); CREATE FUNCTION warn() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE WARNING 'w'; RETURN NULL; END $$;
		CREATE CONSTRAINT TRIGGER warn AFTER INSERT ON warns DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION warn()`)
	g := w.acquire(t, orders, 34)
	unwatched := poolWith(t, s.URL("postgres"), func(*pgxpool.Config) {})
	inTx := func(db pgfence.Beginner) error {
		return pgfence.InTx(t.Context(), db, g, func(tx pgx.Tx) error { return write(t.Context(), tx, 34) })
	}
	if err := inTx(unwatched); err != nil {
		t.Fatalf("no standby is synchronous: %v", err)
	}
	if err := pgfence.New(unwatched).Arm(t.Context(), arming(g)); err != nil {
		t.Fatalf("no standby is synchronous: %v", err)
	}
	warned := pgfence.InTx(t.Context(), w.writer, g, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), `INSERT INTO warns DEFAULT VALUES`)
		return err
	})
	if warned != nil {
		t.Errorf("another warning: %v", warned)
	}

	unwatched = poolWith(t, s.URL("postgres"), func(c *pgxpool.Config) { c.ConnConfig.OnNotice = func(*pgconn.PgConn, *pgconn.Notice) {} })
	s.standby(t, w, "missing")
	if err := inTx(unwatched); !errors.Is(err, pgfence.ErrNoticesUnavailable) || errors.Is(err, fence.ErrUnknown) {
		t.Errorf("unwatched: %v", err)
	}
	batch := &pgx.Batch{}
	batch.Queue(`INSERT INTO work (token) VALUES (34)`)
	if _, err := pgfence.ExecBatch(t.Context(), unwatched, pgx.TxOptions{}, []fence.Grant{g}, batch); !errors.Is(err, pgfence.ErrNoticesUnavailable) {
		t.Errorf("unwatched batch: %v", err)
	}
	if err := pgfence.New(unwatched).Arm(t.Context(), arming(g)); !errors.Is(err, pgfence.ErrNoticesUnavailable) {
		t.Errorf("unwatched arm: %v", err)
	}
	next := fence.Arming{Resource: "other", Token: 1, SealHash: fence.NewSeal().Hash()}
	steps := map[string]func() error{
		"InTx":               func() error { return inTx(w.writer) },
		"Arm":                func() error { return w.fence.Arm(t.Context(), next) },
		"Arm the same again": func() error { return w.fence.Arm(t.Context(), next) },
		"ArmAll": func() error {
			return w.fence.Arm(t.Context(), []fence.Arming{{Resource: "b", Token: 1}, {Resource: "a", Token: 1}}...)
		},
		"epoch": func() error { _, err := w.fence.RaiseEpoch(t.Context(), 0); return err },
		"batch": func() error {
			batch := &pgx.Batch{}
			batch.Queue(`INSERT INTO work (token) VALUES (34)`)
			_, err := pgfence.ExecBatch(t.Context(), w.writer, pgx.TxOptions{}, []fence.Grant{g}, batch)
			return err
		},
	}
	var lost error
	for name, step := range steps {
		err := cancelWaits(t, w, later(step))
		if !errors.Is(err, fence.ErrUnknown) || !errors.Is(err, pgfence.ErrUnreplicated) {
			t.Errorf("%s: %v", name, err)
		}
		if name == "InTx" {
			lost = err
		}
	}
	if n := rows(t, w); n != 3 {
		t.Errorf("%d rows", n)
	}

	// Its outcome is known once the standby has it; here, once no standby is configured.
	found := later(func() error { return outcome(t, w.writer, lost) })
	w.waitFor(t, "the outcome waits for the standby", waitsForStandby)
	s.standby(t, w, "")
	if err := <-found; err != nil {
		t.Errorf("replicated at last: %v", err)
	}
}
