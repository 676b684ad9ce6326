package pgfence_test

import (
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
)

// prepare prepares tx for COMMIT PREPARED, under a name that is unique in the cluster.
func prepare(t testing.TB, tx pgx.Tx) (gid string) {
	t.Helper()
	gid = rand.Text()
	if _, err := tx.Exec(t.Context(), `PREPARE TRANSACTION '`+gid+`'`); err != nil {
		t.Fatal(err)
	}
	return gid
}

// refusesOver checks that arming fails because of the prepared transaction gid.
func (w world) refusesOver(t testing.TB, next fence.Arming, gid string) {
	t.Helper()
	err := w.fence.Arm(t.Context(), next)
	var undrained *fence.UndrainedError
	if !errors.As(err, &undrained) || !strings.Contains(undrained.Detail, "prepared transaction '"+gid+"'") {
		t.Errorf("arm %d: %v (%+v), want an UndrainedError that names %q", next.Token, err, undrained, gid)
	}
}

// Arm's promise includes prepared transactions: it succeeds only once their writes are committed or rolled back.
func TestAPreparedTransactionIsThereBeforeArmReturnsOrNever(t *testing.T) {
	t.Parallel()
	for _, level := range levels {
		for _, end := range []string{"COMMIT", "ROLLBACK"} {
			t.Run(fmt.Sprint(level, " ", end), func(t *testing.T) {
				t.Parallel()
				w := setup(t, pgfence.WithGrace(10*time.Millisecond))
				gid := prepare(t, paused(t, w, level, w.acquire(t, orders, 34)))
				next := arming(fence.Grant{Resource: orders, Token: 35, Seal: fence.NewSeal()})
				w.refusesOver(t, next, gid)
				w.refusesOver(t, next, gid)
				newer := arming(fence.Grant{Resource: orders, Token: 36, Seal: fence.NewSeal()})
				w.refusesOver(t, newer, gid) // a second attempt reports the prepared transaction, too
				if n := value[int](t, w, `SELECT count(*) FROM work`); n != 0 {
					t.Errorf("%d rows before %s PREPARED", n, end)
				}
				w.exec(t, end+` PREPARED '`+gid+`'`)
				if err := w.fence.Arm(t.Context(), newer); err != nil {
					t.Errorf("after %s PREPARED: %v", end, err)
				}
				want := map[string]int{"COMMIT": 1, "ROLLBACK": 0}[end]
				if n := value[int](t, w, `SELECT count(*) FROM work`); n != want {
					t.Errorf("%d rows after %s PREPARED, want %d", n, end, want)
				}
			})
		}
	}
}

func TestAPreparedTransactionHoldsItsGrantThroughACrash(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	w := s.world(t)
	w.exec(t, `ALTER SYSTEM SET max_prepared_transactions = 5`)
	crash := func() {
		t.Helper()
		if err := s.Kill(); err != nil {
			t.Fatal(err)
		}
		s.start(t)
		w.admin = poolWith(t, s.URL("postgres"), func(*pgxpool.Config) {})
		w.fence = pgfence.New(poolWith(t, s.URL("postgres"), pgfence.Configure), pgfence.WithGrace(10*time.Millisecond))
	}
	crash()
	g := w.acquire(t, orders, 34)
	tx := begin(t, connect(t, s.URL("postgres")), pgx.ReadCommitted, g)
	if err := write(t.Context(), tx, g.Token); err != nil {
		t.Fatal(err)
	}
	gid := prepare(t, tx)
	crash()
	next := arming(fence.Grant{Resource: orders, Token: 35, Seal: fence.NewSeal()})
	w.refusesOver(t, next, gid)
	w.exec(t, `COMMIT PREPARED '`+gid+`'`)
	if err := w.fence.Arm(t.Context(), next); err != nil {
		t.Error(err)
	}
}

// A writer raises the fence by an unsealed token, and keeps its turn until COMMIT PREPARED.
func TestAPreparedTransactionThatRaisedTheFenceIsNamed(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]fence.Token{"the first token of all": 0, "a later one": 5} {
		for _, waited := range []bool{false, true} {
			if waited && before == 0 {
				continue // no earlier raise is possible
			}
			t.Run(fmt.Sprint(name, ", had to wait: ", waited), func(t *testing.T) {
				t.Parallel()
				w := setupUnsealed(t, pgfence.WithDrainLimit(100*time.Millisecond))
				if before > 0 {
					if err := attempt(t, w.session(t), pgx.ReadCommitted, orders, before.String()); err != nil {
						t.Fatal(err)
					}
				}
				tx := begin(t, w.session(t), pgx.ReadCommitted, fence.Grant{Resource: orders, Token: 7})
				if err := writeAfter(t, w, tx, waited); err != nil {
					t.Fatal(err)
				}
				gid := prepare(t, tx)
				next := arming(fence.Grant{Resource: orders, Token: 8, Seal: fence.NewSeal()})
				w.refusesOver(t, next, gid)
				w.exec(t, `COMMIT PREPARED '`+gid+`'`)
				if err := w.fence.Arm(t.Context(), next); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// writeAfter writes under token 7. If waits, another raise, which is rolled back, has its turn first.
func writeAfter(t *testing.T, w world, tx pgx.Tx, waits bool) error {
	t.Helper()
	if !waits {
		return write(t.Context(), tx, 7)
	}
	first, err := w.admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := first.Exec(t.Context(), `SELECT fence.raise($1, 6, $2, '')`, orders, fence.NewSeal().Hash()); err != nil {
		t.Fatal(err)
	}
	done := later(func() error { return write(t.Context(), tx, 7) })
	w.waitFor(t, "the writer waits for its turn", `SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND locktype IN ('transactionid', 'tuple') AND pid = $1)`, tx.Conn().PgConn().PID())
	if err := first.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	return <-done
}

// During COMMIT PREPARED a transaction's name disappears a moment before its locks. Draining must not fail then,
// because the locks are released at once.
func TestAPreparedTransactionThatIsJustEndingIsNoFault(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(t, `CREATE OR REPLACE FUNCTION fence.holders(p_key bigint) RETURNS TABLE (pid int, gid text, writer boolean) LANGUAGE sql
	           AS $$ SELECT NULL::int, NULL::text, true $$`)
	if heldBy := value[*string](t, w, `SELECT held_by FROM fence.end_holders(1)`); heldBy != nil {
		t.Errorf("in the way is %s", *heldBy)
	}
	if named := value[string](t, w, `SELECT fence.holders_named(1)`); named != "a transaction that has just ended" {
		t.Errorf("named %s", named)
	}
}
