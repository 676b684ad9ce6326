package pgfence_test

import (
	"errors"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
)

// setupUnsealed accepts another issuer's tokens for some resources.
func setupUnsealed(t testing.TB, opts ...pgfence.Option) world {
	t.Helper()
	w := setup(t, opts...)
	w.exec(t, `INSERT INTO fence.unsealed VALUES ('orders/*'), ('a_c%\'), ('*/end')`)
	return w
}

func TestUnsealedTokensPassOnlyWhereAPatternSaysSo(t *testing.T) {
	t.Parallel()
	w := setupUnsealed(t)
	for name, accepted := range map[string]bool{
		"orders/": true, "orders/1": true, "orders/1/2": true, "orders": false, "xorders/1": false,
		`a_c%\`: true, `abc%\`: false, `a_cd\`: false, "x/end": true, "x/ending": false,
	} {
		if got := value[bool](t, w, `SELECT fence.accepts_unsealed($1)`, name); got != accepted {
			t.Errorf("%q: %v", name, got)
		}
	}
}

func TestAHigherUnsealedTokenRaisesTheFence(t *testing.T) {
	t.Parallel()
	for _, level := range levels {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			w := setupUnsealed(t)
			conn := w.session(t)
			for _, c := range []struct {
				token string
				want  error
				now   fence.Token
			}{
				{"7", nil, 7}, // the first one creates the fence
				{"7", nil, 7},
				{"6", fence.ErrStale, 7},
				{"9", nil, 9},
				{"9", nil, 9},
				{"7", fence.ErrStale, 9},
				{"9." + sealA, fence.ErrNeverIssued, 9},
				{"10." + sealA, fence.ErrNeverIssued, 9},
				{"0." + sealA, fence.ErrStale, 9},
				{"9007199254740991", nil, 9007199254740991},
			} {
				err := pgfence.Translate(attempt(t, conn, level, orders, c.token))
				if !errors.Is(err, c.want) {
					t.Errorf("%s: %v, want %v", c.token, err, c.want)
				}
				if got := value[fence.Token](t, w, `SELECT token FROM fence.resources`); got != c.now {
					t.Errorf("after %s the fence stands at %d, want %d", c.token, got, c.now)
				}
			}
		})
	}
}

func TestASealedFenceIsNotOpenToItsBareToken(t *testing.T) {
	t.Parallel()
	w := setupUnsealed(t)
	g := w.acquire(t, orders, 34)
	conn := w.session(t)
	wantCode(t, attempt(t, conn, pgx.ReadCommitted, orders, "34"), "ZF003")
	if err := attempt(t, conn, pgx.ReadCommitted, orders, g.Presented()); err != nil {
		t.Error(err)
	}
	if err := attempt(t, conn, pgx.ReadCommitted, orders, "35"); err != nil {
		t.Errorf("a higher one is accepted: %v", err)
	}
	wantCode(t, attempt(t, conn, pgx.ReadCommitted, orders, g.Presented()), "ZF001")
}

func TestARaiseByAWriterIsUndoneWithItsTransaction(t *testing.T) {
	t.Parallel()
	w := setupUnsealed(t)
	tx := begin(t, w.session(t), pgx.ReadCommitted, fence.Grant{Resource: orders, Token: 7})
	if err := write(t.Context(), tx, 7); err != nil {
		t.Fatal(err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := value[int](t, w, `SELECT count(*) FROM fence.resources`); n != 0 {
		t.Errorf("%d fences", n)
	}
}

// A writer that raises waits for older ones in flight, and older ones wait for it.
func TestAWriterThatRaisesComesAfterTheOlderOnes(t *testing.T) {
	t.Parallel()
	w := setupUnsealed(t)
	older := paused(t, w, pgx.ReadCommitted, fence.Grant{Resource: orders, Token: 7})
	if err := older.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	older = paused(t, w, pgx.ReadCommitted, fence.Grant{Resource: orders, Token: 7})
	newer := begin(t, w.session(t), pgx.ReadCommitted, fence.Grant{Resource: orders, Token: 8})
	done := make(chan error, 1)
	go func() { done <- write(t.Context(), newer, 8) }()
	w.waitFor(t, "the newer writer waits", waitsForLock)
	if err := older.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}

	late := begin(t, w.session(t), pgx.ReadCommitted, fence.Grant{Resource: orders, Token: 7})
	go func() { done <- write(t.Context(), late, 7) }()
	w.waitFor(t, "the older writer waits", waitsForLock)
	if err := newer.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantCode(t, <-done, "ZF001")
}

// A sealed arm after unsealed writers drains them like any others.
func TestArmDrainsUnsealedWriters(t *testing.T) {
	t.Parallel()
	w := setupUnsealed(t)
	if err := attempt(t, w.session(t), pgx.ReadCommitted, orders, "7"); err != nil {
		t.Fatal(err)
	}
	tx := paused(t, w, pgx.RepeatableRead, fence.Grant{Resource: orders, Token: 7})
	w.acquire(t, orders, 8)
	if err := tx.Commit(t.Context()); err == nil {
		t.Error("committed after arm had returned")
	}
}

// A token that a writer made up would otherwise use up the epochs, and no lock node could be admitted any more. A lease
// above it, a revocation and the invalidation itself seal such a fence.
func TestAMadeUpTokenLeavesEpochsAfterInvalidations(t *testing.T) {
	t.Parallel()
	const last = 1<<53 - 1
	for name, seal := range map[string]func(w world){
		"bare":    func(world) {},
		"leased":  func(w world) { w.acquire(t, orders, last-1<<33) },
		"revoked": func(w world) { w.exec(t, `SELECT fence.revoke($1)`, orders) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setupUnsealed(t)
			if err := attempt(t, w.session(t), pgx.ReadCommitted, orders, strconv.Itoa(last-1<<34)); err != nil {
				t.Fatal(err)
			}
			seal(w)
			for range 3 {
				w.exec(t, `SELECT fence.invalidate_all(true)`)
			}
			if epoch, err := w.fence.RaiseEpoch(t.Context(), 0); err != nil || epoch > 10 {
				t.Errorf("epoch %d, %v", epoch, err)
			}
			wantCode(t, attempt(t, w.session(t), pgx.ReadCommitted, orders, strconv.Itoa(last-1<<34)), "ZF001")
		})
	}
}

// A group of lock nodes without an Armer may have its tokens presented bare, from epochs that PostgreSQL has lost.
func TestInvalidatingRaisesTheEpochAboveBareTokens(t *testing.T) {
	t.Parallel()
	w := setupUnsealed(t)
	for _, c := range []struct{ token, want int64 }{{1024<<32 + 5, 1026}, {2051<<32 + 5, 1028}} { // the second is too far ahead
		if err := attempt(t, w.session(t), pgx.ReadCommitted, orders, strconv.FormatInt(c.token, 10)); err != nil {
			t.Fatal(err)
		}
		w.exec(t, `SELECT fence.invalidate_all(true)`)
		if epoch, err := w.fence.RaiseEpoch(t.Context(), 0); err != nil || epoch != c.want {
			t.Errorf("token %d: epoch %d, %v", c.token, epoch, err)
		}
	}
}
