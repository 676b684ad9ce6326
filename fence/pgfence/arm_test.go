package pgfence_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
)

func TestArmRaisesOnlyUpwards(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(t, orders, 34)
	before := value[string](t, w, `SELECT r::text FROM fence.resources r`)

	if err := w.fence.Arm(t.Context(), arming(g)); err != nil {
		t.Errorf("the same grant again, as after a lost acknowledgement: %v", err)
	}
	for _, a := range []fence.Arming{
		{Resource: orders, Token: 33, SealHash: fence.NewSeal().Hash()},
		{Resource: orders, Token: 34, SealHash: fence.NewSeal().Hash()},
		{Resource: orders, Token: 34},
	} {
		err := w.fence.Arm(t.Context(), a)
		var not *fence.NotRaisedError
		if !errors.As(err, &not) || not.Recorded != 34 || not.Offered != a.Token || errors.Is(err, fence.ErrUnknown) {
			t.Errorf("token %d: %v", a.Token, err)
		}
		if value[bool](t, w, `SELECT raised FROM fence.raise($1, $2, $3, '')`, a.Resource, a.Token, a.SealHash) {
			t.Errorf("token %d: fence.raise by itself says that it raised", a.Token)
		}
	}
	if after := value[string](t, w, `SELECT r::text FROM fence.resources r`); after != before {
		t.Errorf("the fence changed from %s to %s", before, after)
	}
	w.acquire(t, orders, 9007199254740993)
}

func TestArmRefusesMalformedRequests(t *testing.T) {
	t.Parallel()
	w := setup(t)
	hash := fence.NewSeal().Hash()
	for _, a := range []fence.Arming{
		{Resource: "", Token: 1, SealHash: hash},
		{Resource: strings.Repeat("x", 513), Token: 1, SealHash: hash},
		{Resource: "a\nb", Token: 1, SealHash: hash},
		{Resource: "a\xff", Token: 1, SealHash: hash},
		{Resource: "a*", Token: 1, SealHash: hash},
		{Resource: "a", Token: 0, SealHash: hash},
		{Resource: "a", Token: -1, SealHash: hash},
		{Resource: "a", Token: 1, SealHash: hash[:31]},
		{Resource: "a", Token: 1, SealHash: []byte{}},
		{Resource: "a", Token: 1, SealHash: hash, Holder: strings.Repeat("h", 513)},
	} {
		if err := w.fence.Arm(t.Context(), a); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("%+v: %v", a, err)
		}
		if a.Resource == "a\xff" || a.Holder != "" {
			continue // does not reach SQL, or is checked by the client
		}
		_, err := w.admin.Exec(t.Context(), `SELECT fence.raise($1, $2, $3, '')`, a.Resource, int64(a.Token), a.SealHash)
		wantCode(t, err, "22023")
	}
	if n := value[int](t, w, `SELECT count(*) FROM fence.resources`); n != 0 {
		t.Errorf("%d fences appeared", n)
	}
}

func TestASealServesOneToken(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(t, orders, 34)
	g.Token = 35
	err := w.fence.Arm(t.Context(), arming(g))
	wantCode(t, err, "22023")
	if errors.Is(err, fence.ErrUnknown) || value[int](t, w, `SELECT token FROM fence.resources`) != 34 {
		t.Errorf("raised with a used seal: %v", err)
	}
}

// With many concurrent first acquirers, a fence is created exactly once.
func TestFirstArmsGoOneByOne(t *testing.T) {
	t.Parallel()
	w := setup(t)
	const n = 20
	var wg sync.WaitGroup
	errs := make([]error, n)
	for i := range n {
		wg.Go(func() {
			errs[i] = w.fence.Arm(t.Context(), fence.Arming{Resource: "new", Token: fence.Token(i + 1), SealHash: fence.NewSeal().Hash()})
		})
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil && !errors.Is(err, fence.ErrNotRaised) {
			t.Errorf("token %d: %v", i+1, err)
		}
	}
	if got := value[int](t, w, `SELECT token FROM fence.resources WHERE resource = 'new'`); got != n || errs[n-1] != nil {
		t.Errorf("the fence stands at %d, want %d; its arm said %v", got, n, errs[n-1])
	}
}

// A raise that was rolled back leaves xmax set; the slow path still finds the grant current.
func TestAnAbandonedRaiseLeavesTheGrantCurrent(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(t, orders, 34)
	tx, err := w.admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT fence.raise($1, 35, NULL, '')`, orders); err != nil {
		t.Fatal(err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if value[bool](t, w, `SELECT xmax = '0'::xid FROM fence.resources`) {
		t.Fatal("the test does not reach the slow path")
	}
	conn := w.session(t)
	for _, level := range levels {
		for range 2 {
			if err := attempt(t, conn, level, orders, g.Presented()); err != nil {
				t.Errorf("%s: %v", level, err)
			}
		}
	}
	readOnly, err := conn.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		t.Fatal(err)
	}
	if err := pgfence.Use(t.Context(), readOnly, g); !strings.Contains(refusalOf(t, err).Hint, "read-only transaction can tell at READ COMMITTED") {
		t.Errorf("read only, which can't tell: %v", err)
	}
}

func TestArmNeedsReadCommitted(t *testing.T) {
	t.Parallel()
	w := setup(t)
	f := pgfence.New(poolWith(t, w.pg.GatewayURL, func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["default_transaction_isolation"] = "repeatable read"
	}))
	err := f.Arm(t.Context(), fence.Arming{Resource: orders, Token: 1, SealHash: fence.NewSeal().Hash()})
	if err == nil || !strings.Contains(err.Error(), "READ COMMITTED") || errors.Is(err, fence.ErrUnknown) {
		t.Errorf("got %v", err)
	}
}

// With synchronous_commit = off an acknowledged raise would be lost in a crash.
func TestArmCommitsDurablyWhateverTheSessionChose(t *testing.T) {
	t.Parallel()
	w := setup(t)
	for i, c := range []struct{ chosen, effective string }{
		{"off", "on"}, {"local", "on"}, {"remote_write", "on"}, {"on", "on"}, {"remote_apply", "remote_apply"},
	} {
		conn := connect(t, w.pg.GatewayURL, "-c synchronous_commit="+c.chosen)
		for _, call := range []string{
			fmt.Sprintf(`SELECT fence.raise('r', %d, NULL, '')`, i+1), `SELECT fence.revoke('r')`, `SELECT fence.next_epoch(1)`,
		} {
			tx, err := conn.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec(t.Context(), `SELECT FROM fence.fences`); err != nil {
				t.Fatal(err)
			}
			if i == 0 && strings.Contains(call, "revoke") {
				w.exec(t, `SELECT fence.raise('r', 1, NULL, '')`)
			}
			if _, err := tx.Exec(t.Context(), call); err != nil {
				t.Fatal(err)
			}
			var effective string
			if err := tx.QueryRow(t.Context(), `SHOW synchronous_commit`).Scan(&effective); err != nil {
				t.Fatal(err)
			}
			if effective != c.effective {
				t.Errorf("%s with %s commits with %s", call, c.chosen, effective)
			}
			_ = tx.Rollback(t.Context())
		}
	}
}

// While a session keeps a snapshot, older versions of a fence's row can't be removed, and each search used to read
// all of them. The test counts pages, because unlike time they are the same on a busy machine.
func TestArmingUnderALongSnapshotMeetsTheNewestVersionFirst(t *testing.T) {
	t.Parallel()
	for name, arm := range map[string]string{
		"by itself":  `SELECT fence.arm($1, $2, sha256($3), '')`,
		"in a group": `SELECT (fence.arm_group(ARRAY[$1], ARRAY[$2::bigint], ARRAY[sha256($3)], ARRAY['']))[1]`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			armUnderALongSnapshot(t, arm)
		})
	}
}

func armUnderALongSnapshot(t *testing.T, arm string) {
	w := setup(t)
	w.acquire(t, orders, 1)
	const fetched = `SELECT pg_stat_get_xact_blocks_fetched('fence.resources'::regclass)::int`
	pages := func(token int) int { // read by an arming
		t.Helper()
		tx, err := w.admin.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var before, after int
		var armed bool
		if err := errors.Join(tx.QueryRow(t.Context(), fetched).Scan(&before),
			tx.QueryRow(t.Context(), arm, orders, token, fmt.Append(nil, token)).Scan(&armed),
			tx.QueryRow(t.Context(), fetched).Scan(&after), tx.Commit(t.Context())); err != nil || !armed {
			t.Fatalf("armed %v: %v", armed, err)
		}
		return after - before
	}
	first := pages(2)
	keeper := begin(t, connect(t, w.pg.URL), pgx.RepeatableRead, fence.Grant{Resource: "none", Token: 1, Seal: fence.NewSeal()})
	if _, err := keeper.Exec(t.Context(), `SELECT count(*) FROM fence.resources`); err != nil {
		t.Fatal(err)
	}
	w.exec(t, `DO $$ BEGIN FOR i IN 3..1500 LOOP PERFORM fence.arm('orders/1001', i, sha256(i::text::bytea), ''); COMMIT; END LOOP; END $$`)
	if last := pages(1501); last > 2*first+4 || first == 0 {
		t.Errorf("the first arming fetched %d pages, after 1,500 of them it took %d", first, last)
	}
	if n := value[int](t, w, `SELECT pg_relation_size('fence.resources') / 8192`); n < 15 {
		t.Errorf("the test proves nothing: the fence's versions take %d pages", n)
	}
}
