package pgfence_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
)

// If a drain fails in another way, the fence is still raised.
func TestADrainThatFailsOtherwiseIsUndrained(t *testing.T) {
	t.Parallel()
	w := setup(t, pgfence.WithGrace(time.Minute), pgfence.WithDrainLimit(time.Minute))
	paused(t, w, pgx.ReadCommitted, w.acquire(t, orders, 34))
	armed := make(chan error, 1)
	go func() {
		armed <- w.fence.Arm(t.Context(), fence.Arming{Resource: orders, Token: 35, SealHash: fence.NewSeal().Hash()})
	}()
	w.waitFor(t, "arm drains", waitsForLock)
	w.exec(t, `SELECT pg_cancel_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
		AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
	err := <-armed
	var undrained *fence.UndrainedError
	if !errors.As(err, &undrained) || undrained.Token != 35 || undrained.Resource != orders || !strings.Contains(err.Error(), "is raised to 35") {
		t.Errorf("got %v (%+v)", err, undrained)
	}
	wantCode(t, err, "57014")
}

func TestTheDrainAnswersBeforeAStatementTimeout(t *testing.T) {
	t.Parallel()
	w := setup(t)
	tx := paused(t, w, pgx.ReadCommitted, w.acquire(t, orders, 34))
	f := pgfence.New(poolWith(t, w.pg.GatewayURL, func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["statement_timeout"] = "12s"
	}), pgfence.WithGrace(time.Minute), pgfence.WithDrainLimit(time.Minute))
	if err := f.Arm(t.Context(), fence.Arming{Resource: orders, Token: 35, SealHash: fence.NewSeal().Hash()}); err != nil {
		t.Error(err)
	}
	if err := tx.Commit(t.Context()); err == nil {
		t.Error("the stale transaction committed after arm had returned")
	}
}

// A read-only transaction can't check whether its snapshot shows the newest fence, so it is not reported as current.
func TestAReadOnlySnapshotIsNotCalledCurrent(t *testing.T) {
	t.Parallel()
	w := setup(t)
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		token := value[fence.Token](t, w, `SELECT coalesce(max(token), 0) + 1 FROM fence.resources`)
		g := w.acquire(t, orders, token)
		tx, err := w.session(t).BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level, AccessMode: pgx.ReadOnly})
		if err != nil {
			t.Fatal(err)
		}
		if err := pgfence.Use(t.Context(), tx, g); err != nil {
			t.Fatal(err)
		}
		w.exec(t, `SELECT fence.raise($1, $2, $3, 'next')`, orders, token+1, fence.NewSeal().Hash())
		if err := pgfence.Check(t.Context(), tx); !errors.Is(err, fence.ErrStale) {
			t.Errorf("%s: %v", level, err)
		}
		_ = tx.Rollback(t.Context())
	}
}

func TestStringSyntaxOfTheSessionChangesNothing(t *testing.T) {
	t.Parallel()
	w := setupUnsealed(t)
	g := w.acquire(t, "user/u", 1)
	conn := w.session(t, "-c standard_conforming_strings=off", "-c escape_string_warning=off")
	w.exec(t, `SELECT fence.protect('work', under => 'user/')`)
	if err := attempt(t, conn, pgx.ReadCommitted, "user/u", "0"+g.Presented()[1:]); err != nil {
		t.Error(err)
	}
	w.exec(t, `SELECT fence.unprotect('work')`)
	admin := connect(t, w.pg.URL, "-c standard_conforming_strings=off", "-c escape_string_warning=off")
	for name, want := range map[string]bool{`a_c%\`: true, `abc%\`: false, "orders/1": true} {
		var got bool
		if err := admin.QueryRow(t.Context(), `SELECT fence.accepts_unsealed($1)`, name).Scan(&got); err != nil || got != want {
			t.Errorf("%q: %v, %v", name, got, err)
		}
	}
	var fault *string
	for name, want := range map[string]bool{"u0001f": false, "a\x01b": true, "a\u0085b": true, "a\x7fb": true, "ab-": false} {
		if err := admin.QueryRow(t.Context(), `SELECT fence.resource_fault($1)`, name).Scan(&fault); err != nil || (fault != nil) != want {
			t.Errorf("%q: fault %v, %v", name, fault, err)
		}
	}
}

func TestAnOverlongSettingIsNotEvenDecoded(t *testing.T) {
	t.Parallel()
	w := setup(t)
	if got := value[*string](t, w, `SELECT fence.unescape(repeat('%41', 513))`); got != nil {
		t.Errorf("decoded %d bytes", len(*got))
	}
	if got := value[*string](t, w, `SELECT fence.unescape(repeat('%41', 512))`); got == nil || len(*got) != 512 {
		t.Errorf("got %v", got)
	}
	wantCode(t, attempt(t, w.session(t), pgx.ReadCommitted, strings.Repeat("%41", 513), "1"), "ZF003")
}

// If fn fails after it committed, the error says that something may be committed.
func TestInTxSaysThatItsFunctionCommittedAlsoWhenItFails(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(t, orders, 1)
	cause := errors.New("cause")
	for name, c := range map[string]struct {
		sql   string
		ended bool
	}{"commits": {`COMMIT`, true}, "does not": {`SELECT 1`, false}} {
		err := pgfence.InTx(t.Context(), w.writer, g, func(tx pgx.Tx) error {
			if err := write(t.Context(), tx, 1); err != nil {
				return err
			}
			if _, err := tx.Exec(t.Context(), c.sql); err != nil {
				return err
			}
			return cause
		})
		if !errors.Is(err, cause) || errors.Is(err, pgfence.ErrTxEnded) != c.ended {
			t.Errorf("%s: %v", name, err)
		}
	}
	err := pgfence.InTx(t.Context(), w.writer, g, func(tx pgx.Tx) error { return errors.Join(tx.Rollback(t.Context()), cause) })
	if !errors.Is(err, cause) || errors.Is(err, pgfence.ErrTxEnded) {
		t.Errorf("rolled back: %v", err)
	}
}

// A standby may lag behind an arm, so it refuses to check a grant.
func TestAStandbyChecksNothing(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(t, orders, 1)
	for _, function := range []string{"fence.fast_settings(text)", "fence.verify_slowly(text)", "fence.use(text,text)"} { // as they run on a standby
		definition := value[string](t, w, `SELECT pg_get_functiondef($1::text::regprocedure)`, function)
		w.exec(t, strings.NewReplacer("pg_catalog.pg_is_in_recovery()", "true", "pg_is_in_recovery()", "true").Replace(definition))
	}
	tx := begin(t, w.session(t), pgx.ReadCommitted, g)
	wantCode(t, pgfence.Check(t.Context(), tx), "55000")
	_ = tx.Rollback(t.Context())
	err := pgfence.InTx(t.Context(), w.writer, g, func(pgx.Tx) error { return nil })
	wantCode(t, err, "55000")
}

// A closed connection or pool never answers again, so the outcome is not asked there until the context ends.
func TestTheOutcomeIsNotAskedForEverOnWhatIsClosed(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(t, orders, 34)
	lost := loseCommit(t, w.pg.WriterURL, g, true)
	conn := w.session(t)
	held, err := w.writer.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer held.Release()
	pool := poolWith(t, w.pg.WriterURL, func(*pgxpool.Config) {})
	pool.Close()
	if err := errors.Join(conn.Close(t.Context()), held.Conn().Close(t.Context())); err != nil {
		t.Fatal(err)
	}
	for name, db := range map[string]pgfence.Beginner{"connection": conn, "pooled connection": held, "pool": pool} {
		err := outcome(t, db, lost)
		if !errors.Is(err, fence.ErrUnknown) || errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "open pool") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := outcome(t, w.writer, lost); err != nil {
		t.Errorf("over a pool: %v", err)
	}
}
