package pgfence_test

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
)

func TestEveryStatementChecksAgain(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(t, orders, 34)
	for _, level := range levels {
		g := g
		if level != pgx.ReadCommitted {
			g = w.acquire(t, orders, value[fence.Token](t, w, `SELECT token + 1 FROM fence.resources`))
		}
		tx := begin(t, w.session(t), level, g)
		savepoint, err := tx.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := write(t.Context(), savepoint, g.Token); err != nil {
			t.Fatal(err)
		}
		if err := savepoint.Rollback(t.Context()); err != nil { // releases the lock, too
			t.Fatal(err)
		}
		pid := tx.Conn().PgConn().PID()
		w.acquire(t, orders, g.Token+1) // drains at once: the lock is free
		if !value[bool](t, w, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)`, pid) {
			t.Errorf("%s: the session was ended though it held nothing", level)
		}
		wantCode(t, write(t.Context(), tx, g.Token), "ZF001")
		_ = tx.Rollback(t.Context())
	}
}

func TestALockFromBeforeTheSavepointStays(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(t, orders, 34)
	tx := begin(t, w.session(t), pgx.ReadCommitted, g)
	for range 2 { // the second write is rolled back, the first not
		if err := write(t.Context(), tx, g.Token); err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), `SAVEPOINT s`); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := tx.Exec(t.Context(), `ROLLBACK TO s`); err != nil {
		t.Fatal(err)
	}
	w.acquire(t, orders, 35)
	if err := tx.Commit(t.Context()); err == nil {
		t.Error("a stale transaction committed after arm had returned")
	}
}

func TestSettingsComeWithTheConnection(t *testing.T) {
	t.Parallel()
	w := setup(t)
	name := `Äpfel & "Birnen" 100%/\o'r`
	w.exec(t, `SELECT fence.protect('work', resource => $1)`, name)
	g := w.acquire(t, name, 7)
	// PGOPTIONS passes the same options to psql and any other libpq program.
	conn := connect(t, w.pg.OtherURL, "-c fence.resource="+fence.EscapeResource(name), "-c fence.token="+g.Presented())
	if _, err := conn.Exec(t.Context(), `INSERT INTO work (note) VALUES ('by options')`); err != nil {
		t.Fatal(err)
	}
	w.acquire(t, name, 8)
	_, err := conn.Exec(t.Context(), `UPDATE work SET note = 'late'`)
	wantCode(t, err, "ZF001")
}

func TestUseLastsForTheTransaction(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(t, `SELECT fence.protect('work', under => 'orders/')`)
	name := "orders/100% \\ 'x'"
	g := w.acquire(t, name, 7)
	conn := w.session(t)
	for _, grant := range []fence.Grant{g, {Resource: name, Seal: g.Seal}} {
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := pgfence.Use(t.Context(), tx, grant); err != nil {
			t.Fatal(err)
		}
		if err := pgfence.Check(t.Context(), tx); err != nil {
			t.Fatal(err)
		}
		if err := write(t.Context(), tx, g.Token); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, err = conn.Exec(t.Context(), `DELETE FROM work`) // the settings are '' now, not NULL
		wantCode(t, err, "ZF002")
	}
}

func TestUseChecksAtOnce(t *testing.T) {
	t.Parallel()
	w := setup(t)
	stale := w.acquire(t, "anything", 1)
	w.acquire(t, "anything", 2)
	tx, err := w.session(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := pgfence.Use(t.Context(), tx, fence.Grant{Resource: "a*", Token: 1}); !errors.Is(err, fence.ErrInvalid) {
		t.Errorf("malformed: %v", err)
	}
	if err := pgfence.Use(t.Context(), tx, stale); !errors.Is(err, fence.ErrStale) {
		t.Errorf("stale: %v", err)
	} else {
		hidden(t, refusalOf(t, err), stale.Seal.Reveal())
	}
}
