package sqlfence_test

import (
	"context"
	"errors"
	"testing"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/sqlfence"
)

const (
	aRow      = `INSERT INTO work VALUES (1)`
	strictOff = `SET standard_conforming_strings = off`
)

// Texts of several statements, which the simple protocol sends as one: those that end the transaction, and those that
// only look like it.
var (
	endings = []string{
		aRow + `; ROLLBACK`,
		aRow + `;COMMIT; ` + aRow,
		aRow + "; -- it's\n/* ; /* */ ' */ end",
		aRow + "; --x\rABORT",
		`;; (SELECT 1); COMMIT AND CHAIN`,
		`SELECT ''';', "a;'".a FROM (SELECT 1 AS a) AS "a;'"; ROLLBACK WORK`,
		`SELECT E'\';', 'C:\'; COMMIT`,
		`SELECT $$;'$$, $a$;$$;$b$;$a$, 1 AS a$b; COMMIT; SELECT 1 AS a$b`,
		`CREATE FUNCTION pg_temp.f() RETURNS int LANGUAGE sql BEGIN ATOMIC SELECT CASE 1 WHEN 2 THEN 3 END; SELECT 4; END; COMMIT`,
		strictOff, // for the next one
		`SELECT 'a\'' ; COMMIT; SELECT 'b\''`,
	}
	stays = []string{
		aRow + `; ` + aRow + `;`,
		`SAVEPOINT a; ROLLBACK TO a; ROLLBACK TRANSACTION TO SAVEPOINT a; RELEASE a`,
		aRow + "; -- ; COMMIT\n" + aRow,
		aRow + `; /* ; COMMIT /* ; END */ ; ABORT */ ` + aRow,
		`SELECT ' ; COMMIT', ''' ; COMMIT', E'\' ; COMMIT', U&' ; COMMIT'; SELECT 1`,
		`SELECT 1 AS " ; COMMIT", 2 AS """ ; COMMIT"; SELECT 1`,
		`SELECT $$ ; COMMIT; $$, $a1$ ; COMMIT; $$ $a$ ; COMMIT $a1$; SELECT 1`,
		`CREATE FUNCTION pg_temp.g() RETURNS int LANGUAGE sql BEGIN ATOMIC SELECT CASE 1 WHEN 2 THEN 3 END; SELECT 4; END; SELECT 1`,
		`CREATE TEMP TABLE t (); CREATE RULE r AS ON INSERT TO t DO (DELETE FROM t; DELETE FROM t); SELECT 1 AS commit`,
	}
)

// A text is refused as a whole if one of its statements begins or ends the transaction. Nothing of it is executed.
func TestATextIsRefusedIfAnyStatementEndsTheTransaction(t *testing.T) {
	t.Parallel()
	for _, driver := range []string{"pq", "simple"} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, connectors[driver])
			ctx := sqlfence.WithGrant(t.Context(), w.acquire(t, orders, 1))
			for _, text := range append(endings, aRow+`; BEGIN`, `SELECT 1; START TRANSACTION`, `SELECT 1; PREPARE TRANSACTION 'x'`) {
				if text == strictOff {
					continue
				}
				tx, err := w.db.BeginTx(ctx, nil)
				if err != nil {
					t.Fatal(err)
				}
				if err := exec(ctx, tx, text); !errors.Is(err, fence.ErrInvalid) {
					t.Errorf("%s: %v", text, err)
				}
				if err := tx.Commit(); err != nil {
					t.Errorf("commit after %s: %v", text, err)
				}
				if err := exec(ctx, w.db, text); !errors.Is(err, fence.ErrInvalid) {
					t.Errorf("%s, in its own transaction: %v", text, err)
				}
			}
			if n := w.rows(t); n != 0 {
				t.Errorf("%d rows of refused texts", n)
			}
			for _, text := range stays {
				if err := exec(ctx, w.db, text); err != nil {
					t.Errorf("%s: %v", text, err)
				}
			}
			if n := w.rows(t); n != 6 {
				t.Errorf("%d rows of the other texts", n)
			}
		})
	}
}

// The texts of the test above do in PostgreSQL what the test says of them.
func TestPostgreSQLReadsTheTextsTheSameWay(t *testing.T) {
	t.Parallel()
	w := newWorld(t, connectors["pq"])
	conn, err := w.admin.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	g := w.acquire(t, orders, 1)
	ends := func(text string) bool {
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
		const id = `SELECT pg_current_xact_id()::text`
		var before, after string
		err = conn.QueryRow(t.Context(), `SELECT fence.use($1, $2)`, g.Resource, g.Presented()).Scan(nil)
		err = errors.Join(err, conn.QueryRow(t.Context(), id).Scan(&before))
		_, execErr := conn.Conn().PgConn().Exec(t.Context(), text).ReadAll()
		var refused interface{ SQLState() string }
		if err = errors.Join(err, conn.QueryRow(t.Context(), id).Scan(&after)); err != nil {
			t.Errorf("%s: %v, %v", text, err, execErr)
		}
		if execErr != nil && !errors.As(execErr, &refused) {
			t.Errorf("%s: %v", text, execErr)
		}
		return before != after
	}
	for _, text := range endings {
		if text == strictOff {
			if _, err := conn.Exec(t.Context(), text); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if !ends(text) {
			t.Errorf("%s: did not end the transaction", text)
		}
	}
	if _, err := conn.Exec(t.Context(), `RESET standard_conforming_strings`); err != nil {
		t.Fatal(err)
	}
	for _, text := range stays {
		if ends(text) {
			t.Errorf("%s: ended the transaction", text)
		}
	}
}
