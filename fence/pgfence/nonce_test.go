package pgfence_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
)

func nonce(t testing.TB, text string) []byte {
	t.Helper()
	hash, err := fence.NonceHash(strings.ReplaceAll(text, " ", "-"))
	if err != nil {
		t.Fatal(err)
	}
	return hash
}

// armOnce arms a new grant for a nonce.
func (w world) armOnce(ctx context.Context, resource string, token fence.Token, nonceHash []byte) (fence.Arming, error) {
	a := arming(fence.Grant{Resource: resource, Token: token, Seal: fence.NewSeal()})
	a.NonceHash = nonceHash
	return a, w.fence.Arm(ctx, a)
}

func TestANonceArmsAgainWhileNobodyElseHas(t *testing.T) {
	t.Parallel()
	w := setup(t)
	one, other := nonce(t, "the run of program one"), nonce(t, "the run of program two")
	must := func(token fence.Token, n []byte) fence.Arming {
		t.Helper()
		a, err := w.armOnce(t.Context(), orders, token, n)
		if err != nil {
			t.Fatalf("%d: %v", token, err)
		}
		return a
	}
	spent := func(token fence.Token, n []byte, armed fence.Token) {
		t.Helper()
		before := value[string](t, w, `SELECT string_agg(r::text, ' ') FROM (SELECT * FROM fence.resources NATURAL LEFT JOIN fence.nonces) r`)
		_, err := w.armOnce(t.Context(), orders, token, n)
		facts, ok := errors.AsType[*fence.SpentError](err)
		if !ok || facts.Armed != armed || facts.Resource != orders || facts.Recorded <= armed || errors.Is(err, fence.ErrUnknown) {
			t.Errorf("%d: %v (%+v); want that the nonce is spent, last armed %d", token, err, facts, armed)
		}
		if after := value[string](t, w, `SELECT string_agg(r::text, ' ') FROM (SELECT * FROM fence.resources NATURAL LEFT JOIN fence.nonces) r`); after != before {
			t.Errorf("a refusal changed %s to %s", before, after)
		}
	}
	a := must(1, one)
	if err := w.fence.Arm(t.Context(), a); err != nil {
		t.Errorf("the same grant again, as after a lost answer: %v", err)
	}
	must(2, one) // a new connection
	if err := w.fence.End(t.Context(), fence.Ending{Resource: orders, Token: 2}); err != nil {
		t.Fatal(err)
	}
	must(3, one) // and after its release
	must(4, other)
	spent(5, one, 3)
	must(5, other)
	spent(6, one, 3) // permanently
	must(7, nonce(t, "the second run of program one"))
	w.acquire(t, orders, 8) // without a nonce
	spent(9, other, 5)
	must(9, nonce(t, "the third run of program one"))
	if _, err := w.fence.Revoke(t.Context(), orders, "ops"); err != nil {
		t.Fatal(err)
	}
	spent(20, nonce(t, "the third run of program one"), 9)
	if _, err := w.armOnce(t.Context(), "orders/2", 1, one); err != nil {
		t.Errorf("another resource: %v", err)
	}
}

func TestWhatIsKnownOfANonce(t *testing.T) {
	t.Parallel()
	w := setup(t)
	n := nonce(t, "the run of program one")
	known := func() fence.NonceRecord {
		t.Helper()
		r, err := w.fence.Nonce(t.Context(), orders, n)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := known(); r != (fence.NonceRecord{}) || r.Spent() || r.Holds() {
		t.Errorf("of none: %+v", r)
	}
	if _, err := w.armOnce(t.Context(), orders, 1, n); err != nil {
		t.Fatal(err)
	}
	if r := known(); !r.Holds() || r.Spent() {
		t.Errorf("while it holds: %+v", r)
	}
	if err := w.fence.End(t.Context(), fence.Ending{Resource: orders, Token: 1}); err != nil {
		t.Fatal(err)
	}
	if r := known(); r.Holds() || r.Spent() {
		t.Errorf("after its release: %+v", r)
	}
	w.acquire(t, orders, 2)
	if r := known(); r.Holds() || !r.Spent() {
		t.Errorf("after another: %+v", r)
	}
}

// A look beside an arming sees both or neither: a current nonce is never taken for a spent one.
func TestALookAtANonceIsOneSnapshot(t *testing.T) {
	t.Parallel()
	w := setup(t)
	n := nonce(t, "the run of program one")
	armed := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		for token := fence.Token(1); ctx.Err() == nil; token++ {
			if _, err := w.armOnce(ctx, orders, token, n); err != nil && ctx.Err() == nil {
				armed <- err
				return
			}
		}
		armed <- nil
	}()
	for range 3000 {
		if r, err := w.fence.Nonce(t.Context(), orders, n); err != nil || r.Armed != r.Recorded {
			t.Errorf("%+v, %v", r, err)
			break
		}
	}
	cancel()
	if err := <-armed; err != nil {
		t.Error(err)
	}
}

// Two runs with a nonce and one caller without raise concurrently. No other raise comes between two raises of one
// run.
func TestBetweenTwoArmingsOfANonceIsNobodyElses(t *testing.T) {
	t.Parallel()
	w := setup(t)
	var mu sync.Mutex
	var offered fence.Token
	raised := map[fence.Token]int{} // which caller raised
	offer := func() fence.Token { mu.Lock(); defer mu.Unlock(); offered++; return offered }
	const none = 0
	var all sync.WaitGroup
	for who, n := range [][]byte{none: nil, 1: nonce(t, "the run of program one"), 2: nonce(t, "the run of program two")} {
		sql := `SELECT raised FROM fence.raise_once('orders/1001', $1, $2, '', $3)`
		if who == none {
			sql = `SELECT raised FROM fence.raise('orders/1001', $1, $2, '') WHERE $3::bytea IS NULL`
		}
		for range 2 {
			all.Go(func() {
				for range 15 {
					token, yes := offer(), false
					err := w.admin.QueryRow(t.Context(), sql, int64(token), fence.NewSeal().Hash(), n).Scan(&yes)
					if err != nil && refusalOf(t, err).Code != "ZF006" {
						t.Error(err)
					}
					if yes {
						mu.Lock()
						raised[token] = who
						mu.Unlock()
					}
				}
			})
		}
	}
	all.Wait()
	before, held := -1, map[int]bool{}
	for _, token := range slices.Sorted(maps.Keys(raised)) {
		who := raised[token]
		if who != none && held[who] && before != who {
			t.Errorf("program %d raised to %d after program %d, having held it before", who, token, before)
		}
		before, held[who] = who, true
	}
}

// The check of a nonce and the raise are atomic: the check sees an arming that was in progress.
func TestANonceWaitsForTheArmingBeforeIt(t *testing.T) {
	t.Parallel()
	w := setup(t)
	n := nonce(t, "the run of program one")
	if _, err := w.armOnce(t.Context(), orders, 1, n); err != nil {
		t.Fatal(err)
	}
	tx, err := w.admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), `SELECT fence.raise($1, 2, $2, 'b')`, orders, fence.NewSeal().Hash()); err != nil {
		t.Fatal(err)
	}
	came := make(chan error, 1)
	go func() {
		_, err := w.armOnce(t.Context(), orders, 3, n)
		came <- err
	}()
	w.waitFor(t, "it waits", `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE query LIKE '%raise_once%' AND wait_event_type = 'Lock')`)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-came; !errors.Is(err, fence.ErrSpent) {
		t.Errorf("%v; want ErrSpent", err)
	}
}

func TestNoncesAreForgottenByTheirOwnerOnly(t *testing.T) {
	t.Parallel()
	w := setup(t)
	old, young := nonce(t, "a run of last year's"), nonce(t, "a run of today's")
	for i, n := range [][]byte{old, young} {
		if _, err := w.armOnce(t.Context(), orders, fence.Token(i+1), n); err != nil {
			t.Fatal(err)
		}
	}
	w.exec(t, `UPDATE fence.nonces SET armed_at = now() - interval '1 year' WHERE nonce = $1`, old)
	for _, address := range []string{w.pg.GatewayURL, w.pg.WriterURL} {
		_, err := connect(t, address).Exec(t.Context(), `SELECT fence.forget_nonces(now() - interval '2 days')`)
		wantCode(t, err, "42501")
	}
	_, err := w.admin.Exec(t.Context(), `SELECT fence.forget_nonces(now())`)
	wantCode(t, err, "22023")
	if n := value[int](t, w, `SELECT fence.forget_nonces($1)`, time.Now().Add(-48*time.Hour)); n != 1 {
		t.Errorf("%d forgotten", n)
	}
	if _, err := w.armOnce(t.Context(), orders, 9, young); err != nil {
		t.Error(err)
	}
}

func TestANonceIsForArmingOneResource(t *testing.T) {
	t.Parallel()
	w := setup(t)
	a := arming(fence.Grant{Resource: orders, Token: 1, Seal: fence.NewSeal()})
	a.NonceHash = nonce(t, "the run of program one")
	if err := w.fence.ArmAll(t.Context(), []fence.Arming{a}); !errors.Is(err, fence.ErrInvalid) {
		t.Errorf("with others: %v", err)
	}
	a.NonceHash = a.NonceHash[:31]
	if err := w.fence.Arm(t.Context(), a); !errors.Is(err, fence.ErrInvalid) {
		t.Errorf("a short hash: %v", err)
	}
	_, err := w.admin.Exec(t.Context(), `SELECT fence.raise_once('a', 1, NULL, '', NULL)`)
	wantCode(t, err, "22023")
	_, err = w.admin.Exec(t.Context(), `SELECT fence.raise_once('', 1, NULL, '', $1)`, fence.NewSeal().Hash())
	wantCode(t, err, "22023")
	simple := pgfence.New(poolWith(t, w.pg.GatewayURL, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol }))
	if err := simple.Arm(t.Context(), fence.Arming{Resource: orders, Token: 1, SealHash: fence.NewSeal().Hash(), NonceHash: nonce(t, "the run of program one")}); err != nil {
		t.Errorf("with the simple protocol: %v", err)
	}
	if _, err := simple.Nonce(t.Context(), orders, nonce(t, "the run of program one")); err != nil {
		t.Error(err)
	}
}

// A lease by the connection string presents only its seal. Its refusal still names the token.
func TestARefusalNamesTheTokenOfANonce(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := fence.Grant{Resource: orders, Token: 7, Seal: fence.NewSeal()}
	a := arming(g)
	a.NonceHash = nonce(t, "the run of program one")
	if err := w.fence.Arm(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	w.acquire(t, orders, 8)
	err := attempt(t, w.session(t), pgx.ReadCommitted, orders, "0."+g.Seal.Reveal())
	wantCode(t, err, "ZF001")
	if got := refusalOf(t, err); !strings.Contains(got.Message, "stale fencing token 7 ") || !strings.Contains(got.Detail, `"presented":"7"`) {
		t.Errorf("%s (%s); want token 7", got.Message, got.Detail)
	}
}
