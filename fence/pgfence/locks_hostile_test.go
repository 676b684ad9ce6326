package pgfence_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
)

// Any login may take any advisory lock. These tests show that the effects are bounded.

// lockedByAStranger holds an advisory lock in a session of a login without any role.
func lockedByAStranger(t testing.TB, w world, key int64) (release func(), pid uint32) {
	t.Helper()
	conn := connect(t, w.pg.OtherURL)
	if _, err := conn.Exec(t.Context(), `SELECT pg_advisory_lock($1)`, key); err != nil {
		t.Fatal(err)
	}
	return func() {
		if _, err := conn.Exec(t.Context(), `SELECT pg_advisory_unlock($1)`, key); err != nil {
			t.Error(err)
		}
	}, conn.PgConn().PID()
}

// impatient makes writers give up after 300 ms.
func impatient(t testing.TB, w world) {
	t.Helper()
	w.exec(t, `CREATE OR REPLACE FUNCTION fence.patience() RETURNS numeric LANGUAGE sql IMMUTABLE AS 'SELECT 300.0'`)
}

func TestAGuessedLockStopsNoArm(t *testing.T) {
	t.Parallel()
	w := setup(t)
	lockedByAStranger(t, w, value[int64](t, w, `SELECT hashtextextended('arm', hashtextextended($1, 0))`, orders))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := w.fence.Arm(ctx, fence.Arming{Resource: orders, Token: 1, SealHash: fence.NewSeal().Hash()}); err != nil {
		t.Error(err)
	}
}

func TestAnExclusiveLockOnASupersededGrantStopsNoArm(t *testing.T) {
	t.Parallel()
	w := setup(t, pgfence.WithGrace(10*time.Millisecond), pgfence.WithDrainLimit(200*time.Millisecond))
	g := w.acquire(t, orders, 34)
	lockedByAStranger(t, w, value[int64](t, w, `SELECT fence.key($1, 34, $2)`, orders, g.Seal.Hash()))
	w.acquire(t, orders, 35)
	w.acquire(t, orders, 36)
	wantCode(t, attempt(t, w.session(t), pgx.ReadCommitted, orders, g.Presented()), "ZF001")
}

// With a foreign lock and a writer on the same key, the drain finds the writer.
func TestAStrangerInTheQueueHidesNoWriter(t *testing.T) {
	t.Parallel()
	w := setup(t, pgfence.WithGrace(10*time.Millisecond))
	g := w.acquire(t, orders, 34)
	tx := paused(t, w, pgx.ReadCommitted, g)
	stranger := connect(t, w.pg.OtherURL)
	done := make(chan error, 1)
	key := value[int64](t, w, `SELECT fence.key($1, 34, $2)`, orders, g.Seal.Hash())
	go func() {
		_, err := stranger.Exec(t.Context(), `SELECT pg_advisory_lock($1)`, key)
		done <- err
	}()
	w.waitFor(t, "the stranger waits", waitsForLock)
	w.acquire(t, orders, 35)
	if err := tx.Commit(t.Context()); err == nil {
		t.Error("the stale transaction committed after arm had returned")
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestAnExclusiveLockOnTheCurrentGrantIsNamedToItsWriter(t *testing.T) {
	t.Parallel()
	for _, level := range levels {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			impatient(t, w)
			g := w.acquire(t, orders, 34)
			release, pid := lockedByAStranger(t, w, value[int64](t, w, `SELECT fence.key($1, 34, $2)`, orders, g.Seal.Hash()))
			conn := w.session(t, "-c statement_timeout=10s")
			err := attempt(t, conn, level, orders, g.Presented())
			if wantCode(t, err, "ZF005"); !strings.Contains(err.Error(), fmt.Sprint("process ", pid)) {
				t.Errorf("%v does not name process %d", err, pid)
			}
			release()
			if err := attempt(t, conn, level, orders, g.Presented()); err != nil {
				t.Error(err)
			}
		})
	}
}

// A writer that raises the fence waits for every older one, also those left by a crashed arm.
func TestAWriterThatRaisesDrainsWhatACrashedArmLeft(t *testing.T) {
	t.Parallel()
	for _, level := range levels {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			w := setupUnsealed(t)
			impatient(t, w)
			old := paused(t, w, level, w.acquire(t, orders, 34))
			w.exec(t, `SELECT fence.raise($1, 35, $2, 'died')`, orders, fence.NewSeal().Hash())
			err := attempt(t, w.session(t), level, orders, "36")
			if err == nil {
				if err := old.Commit(t.Context()); err == nil {
					t.Fatal("34 committed after 36 had")
				}
				return
			}
			if wantCode(t, err, "ZF005"); !strings.Contains(err.Error(), fmt.Sprint("process ", old.Conn().PgConn().PID())) {
				t.Errorf("%v does not name the writer", err)
			}
			if err := old.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := attempt(t, w.session(t), level, orders, "36"); err != nil {
				t.Error(err)
			}
			if n := value[int](t, w, `SELECT undrained FROM fence.fences`); n != 0 {
				t.Errorf("%d keys are kept", n)
			}
		})
	}
}

// A writer that raised the fence and stopped delays arms only up to their limit, and the error names it.
func TestAStoppedWriterThatRaisedIsNamedToArm(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]bool{"the first fence": true, "a further raise": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setupUnsealed(t, pgfence.WithDrainLimit(200*time.Millisecond))
			if !first {
				w.acquire(t, orders, 6)
			}
			tx := paused(t, w, pgx.ReadCommitted, fence.Grant{Resource: orders, Token: 7})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			next := fence.Arming{Resource: orders, Token: 8, SealHash: fence.NewSeal().Hash()}
			err := w.fence.Arm(ctx, next)
			var undrained *fence.UndrainedError
			if !errors.As(err, &undrained) || undrained.Token != 0 || errors.Is(err, fence.ErrUnknown) ||
				!strings.Contains(undrained.Detail, fmt.Sprint("process ", tx.Conn().PgConn().PID())) {
				t.Errorf("got %v (%+v)", err, undrained)
			}
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := w.fence.Arm(t.Context(), next); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestOnlyWritersMayRaiseByPresenting(t *testing.T) {
	t.Parallel()
	w := setupUnsealed(t)
	stranger := connect(t, w.pg.OtherURL)
	if _, err := stranger.Exec(t.Context(), `CREATE TEMP TABLE mine ()`); err != nil {
		t.Fatal(err)
	}
	_, err := stranger.Exec(t.Context(), `CREATE TRIGGER g BEFORE INSERT ON mine EXECUTE FUNCTION fence.guard('orders/1001')`)
	wantCode(t, err, "42501")
	wantCode(t, attempt(t, stranger, pgx.ReadCommitted, orders, "7"), "ZF003")
	if err := attempt(t, w.session(t), pgx.ReadCommitted, orders, "7"); err != nil {
		t.Fatal(err)
	}
	if err := attempt(t, stranger, pgx.ReadCommitted, orders, "7"); err != nil {
		t.Errorf("the recorded token is no raise: %v", err)
	}
	wantCode(t, attempt(t, w.session(t), pgx.ReadCommitted, orders, "9007199254740992"), "ZF003")
	if err := attempt(t, w.session(t), pgx.ReadCommitted, orders, "9007199254740991"); err != nil {
		t.Error(err)
	}
}

func TestRevokeAtTheHighestTokenSaysSo(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.acquire(t, orders, 9223372036854775807)
	_, err := w.fence.Revoke(t.Context(), orders, "test")
	if wantCode(t, err, "54000"); !strings.Contains(err.Error(), "highest token") {
		t.Error(err)
	}
}
