package pgfence_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/fence"
)

const take = `CALL fence.take($1, $2, $3, $4)`

// taker connects as a login that is fence_gateway, which may call fence.take.
func (w world) taker(t testing.TB) *pgx.Conn {
	t.Helper()
	return connect(t, w.pg.GatewayURL)
}

func TestWhoTakesATokenOfHisOwnLockWritesUnderIt(t *testing.T) {
	t.Parallel()
	w := setup(t)
	lock := w.taker(t)
	for _, token := range []fence.Token{7, 9, 9007199254740991} {
		g := fence.Grant{Resource: orders, Token: token, Seal: fence.NewSeal()}
		for range 2 { // an answer may be lost
			if _, err := lock.Exec(t.Context(), take, orders, int64(token), g.Seal.Hash(), "worker-b"); err != nil {
				t.Fatal(err)
			}
		}
		if err := attempt(t, w.session(t), pgx.ReadCommitted, orders, g.Presented()); err != nil {
			t.Error(err)
		}
	}
	if n := value[int](t, w, `SELECT count(*) FROM work`); n != 3 {
		t.Errorf("%d rows, want 3", n)
	}
}

// Once fence.take has returned, stale transactions are over.
func TestTakingDrainsWhoWroteUnderAnOlderToken(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(t, `SELECT fence.allow_unsealed('orders/*')`)
	lock := w.taker(t)
	older := fence.Grant{Resource: orders, Token: 7, Seal: fence.NewSeal()}
	if _, err := lock.Exec(t.Context(), take, orders, 7, older.Seal.Hash(), ""); err != nil {
		t.Fatal(err)
	}
	sealed := paused(t, w, pgx.ReadCommitted, older)
	if _, err := lock.Exec(t.Context(), take, orders, 8, nil, ""); err != nil {
		t.Fatal(err)
	}
	if err := sealed.Commit(t.Context()); err == nil {
		t.Error("a writer of token 7 committed after token 8 was taken")
	}
	bare := paused(t, w, pgx.ReadCommitted, fence.Grant{Resource: orders, Token: 8})
	if _, err := lock.Exec(t.Context(), take, orders, 9, fence.NewSeal().Hash(), ""); err != nil {
		t.Fatal(err)
	}
	if err := bare.Commit(t.Context()); err == nil {
		t.Error("a writer of the bare token 8 committed after token 9 was taken")
	}
	if n := value[int](t, w, `SELECT count(*) FROM work`); n != 0 {
		t.Errorf("%d rows of stale writers", n)
	}
}

// Bare tokens that are not taken have two gaps. docs/own-lock.md describes them.
func TestABareTokenThatNobodyTakesLeavesTwoGaps(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(t, `SELECT fence.allow_unsealed('orders/*')`)
	conn := w.session(t)
	for _, token := range []string{"7", "7"} { // 8 was issued in between, and has not been presented
		if err := attempt(t, conn, pgx.ReadCommitted, orders, token); err != nil {
			t.Errorf("a late write passes until the newer token is presented: %v", err)
		}
	}
	stale := paused(t, w, pgx.ReadCommitted, fence.Grant{Resource: orders, Token: 7})
	impatient := w.session(t, "-c lock_timeout=50ms")
	wantCode(t, attempt(t, impatient, pgx.ReadCommitted, orders, "8"), "ZF005") // the stale transaction can't be ended
	if err := stale.Commit(t.Context()); err != nil {
		t.Error(err)
	}
	if err := attempt(t, conn, pgx.ReadCommitted, orders, "8"); err != nil {
		t.Error(err)
	}
	wantCode(t, attempt(t, conn, pgx.ReadCommitted, orders, "7"), "ZF001")
}

func TestWhatCannotBeTakenChangesNothing(t *testing.T) {
	t.Parallel()
	w := setup(t)
	hash := fence.NewSeal().Hash()
	w.acquire(t, orders, 34)
	w.exec(t, `SELECT fence.allow_unsealed('bare/*')`)
	lock := w.taker(t)
	if _, err := lock.Exec(t.Context(), take, "bare/1", 5, nil, ""); err != nil {
		t.Fatal(err)
	}
	const state = `SELECT (SELECT jsonb_agg(f ORDER BY f.resource) FROM fence.fences f)::text || (SELECT count(*) FROM fence.arms)`
	before := value[string](t, w, state)
	for name, c := range map[string]struct {
		resource    string
		token, hash any
		code, says  string
	}{
		"the recorded token":           {orders, 34, hash, "ZF001", "the fence stands at 34, and takes higher ones only"},
		"a lower token":                {orders, 33, hash, "ZF001", "the fence stands at 34, and takes higher ones only"},
		"the recorded token, unsealed": {"bare/1", 5, nil, "ZF001", "the fence stands at 5, and takes higher ones only"},
		"0":                            {orders, 0, hash, "22023", "token 0 is not between 1 and 9007199254740991"},
		"negative":                     {orders, -1, hash, "22023", "token -1 is not between"},
		"2^53":                         {orders, 9007199254740992, hash, "22023", "token 9007199254740992 is not between"},
		"NULL":                         {orders, nil, hash, "22023", "token is NULL"},
		"unsealed, not allowed":        {"other/1", 35, nil, "22023", `unsealed tokens are not allowed for "other/1"`},
		"a short hash":                 {orders, 35, []byte("x"), "22023", "seal hash is not 32 bytes long"},
		"the seal, not its hash":       {orders, 35, []byte("9f2c04aa6d0be5f1c8a37e5510d94b62"), "22023", "seal hash is the seal itself: give its hash, sha256('<seal>')"},
		"no name":                      {"", 35, hash, "22023", "resource is empty"},
		"a pattern":                    {"bare/*", 35, hash, "22023", "kept for patterns"},
		"a grant for a name":           {"34." + sealA, 35, hash, "22023", "reads as a token with its seal"},
	} {
		_, err := lock.Exec(t.Context(), take, c.resource, c.token, c.hash, "")
		refused := refusalOf(t, err)
		if refused.Code != c.code || !strings.Contains(refused.Message, c.says) || strings.Contains(refused.Message+refused.Detail, sealA) {
			t.Errorf("%s: %s %s", name, refused.Code, refused.Message)
		}
	}
	refuseBlocks(t, w, hash)
	if after := value[string](t, w, state); after != before {
		t.Errorf("was %s\nis  %s", before, after)
	}
}

// refuseBlocks calls take inside transaction blocks of each kind.
func refuseBlocks(t *testing.T, w world, hash []byte) {
	t.Helper()
	const call = `CALL fence.take('orders/1001', 35, sha256('x'), '')`
	inBlock := func(lock *pgx.Conn) error {
		tx, err := lock.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(t.Context()) }()
		_, err = tx.Exec(t.Context(), take, orders, 35, hash, "")
		return err
	}
	for name, try := range map[string]func(*pgx.Conn) error{
		"BEGIN": inBlock,
		"several statements at once": func(lock *pgx.Conn) error {
			return lock.PgConn().Exec(t.Context(), `SELECT 1; `+call).Close()
		},
		"a function": func(lock *pgx.Conn) error {
			_, err := lock.Exec(t.Context(), `CREATE FUNCTION pg_temp.f() RETURNS void LANGUAGE plpgsql AS 'BEGIN `+strings.ReplaceAll(call, `'`, `''`)+`; END'`)
			if err != nil {
				t.Fatal(err)
			}
			_, err = lock.Exec(t.Context(), `SELECT pg_temp.f()`)
			return err
		},
		"another language": func(lock *pgx.Conn) error {
			_, err := lock.Exec(t.Context(), `DO $$ BEGIN BEGIN `+call+`; EXCEPTION WHEN division_by_zero THEN NULL; END; END $$`)
			return err
		},
	} {
		refused := refusalOf(t, try(w.taker(t)))
		if refused.Code != "25001" && refused.Code != "2D000" || name == "BEGIN" && (refused.Code != "25001" || !strings.Contains(refused.Hint, "autocommit")) {
			t.Errorf("%s: %s %s", name, refused.Code, refused.Message)
		}
	}
}

// If a writer can't be drained, take fails. The fence is raised, so a second try takes the same grant.
func TestATakeThatCouldNotDrainIsTakenByTheNextTry(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(t, orders, 34)
	admin := connect(t, w.pg.URL)
	tx, err := admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT fence.use($1, $2)`, orders, g.Presented()); err != nil { // a superuser's session can't be ended
		t.Fatal(err)
	}
	newer := fence.NewSeal().Hash()
	lock := w.taker(t)
	if _, err := lock.Exec(t.Context(), `SET statement_timeout = '10s'`); err != nil {
		t.Fatal(err)
	}
	_, err = lock.Exec(t.Context(), take, orders, 35, newer, "")
	wantCode(t, err, "ZF005")
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := lock.Exec(t.Context(), `RESET statement_timeout`); err != nil {
		t.Fatal(err)
	}
	if _, err := lock.Exec(t.Context(), take, orders, 35, newer, ""); err != nil {
		t.Error(err)
	}
}

func TestPatternsOfUnsealedTokensAreTheOwnersAlone(t *testing.T) {
	t.Parallel()
	w := setup(t)
	owner := connect(t, w.pg.As(t, "fence_owner"))
	for _, url := range []string{w.pg.WriterURL, w.pg.GatewayURL, w.pg.OtherURL, w.pg.As(t, "fence_locker"), w.pg.As(t, "fence_protector")} {
		conn := connect(t, url)
		for _, sql := range []string{`SELECT fence.allow_unsealed('*')`, `SELECT fence.disallow_unsealed('*')`} {
			_, err := conn.Exec(t.Context(), sql)
			wantCode(t, err, "42501")
		}
		_, err := conn.Exec(t.Context(), take, orders, 1, fence.NewSeal().Hash(), "")
		if mayTake := url == w.pg.GatewayURL; mayTake != (err == nil) {
			t.Errorf("take: %v", err)
		} else if !mayTake {
			wantCode(t, err, "42501")
		}
	}
	allow := func(pattern any) (isNew bool, err error) {
		err = owner.QueryRow(t.Context(), `SELECT fence.allow_unsealed($1)`, pattern).Scan(&isNew)
		return isNew, err
	}
	for _, want := range []bool{true, false} {
		if isNew, err := allow("jobs/*"); err != nil || isNew != want {
			t.Errorf("allow: %v %v, want %v", isNew, err, want)
		}
	}
	for pattern, says := range map[any]string{
		nil: "pattern is empty", "": "pattern is empty", "a\nb": "control character", strings.Repeat("x", 513): "513 bytes", "34." + sealA: "reads as a token",
	} {
		_, err := allow(pattern)
		if refused := refusalOf(t, err); refused.Code != "22023" || !strings.Contains(refused.Message, says) || strings.Contains(refused.Message, sealA) {
			t.Errorf("%v: %s %s", pattern, refused.Code, refused.Message)
		}
	}
	if got := value[string](t, w, `SELECT string_agg(pattern, ' ') FROM fence.unsealed_patterns`); got != "jobs/*" {
		t.Errorf("patterns: %s", got)
	}
	if _, err := owner.Exec(t.Context(), `SELECT fence.disallow_unsealed('jobs/*')`); err != nil {
		t.Error(err)
	}
	_, err := owner.Exec(t.Context(), `SELECT fence.disallow_unsealed('jobs/*')`)
	wantCode(t, err, "42704")
}

// Names that match a pattern don't retire, so floors that other names leave later don't apply to their tokens,
// presented or taken.
func TestATokenIsTakenAboveTheFloorOfItsPattern(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(t, `SELECT fence.allow_unsealed('jobs/*')`)
	w.exec(t, `INSERT INTO fence.floors SELECT b, 1000 FROM generate_series(0, 4095) b`)
	lock := w.taker(t)
	if _, err := lock.Exec(t.Context(), take, "jobs/1", 5, nil, ""); err != nil {
		t.Error(err)
	}
	if _, err := lock.Exec(t.Context(), take, "jobs/2", 5, fence.NewSeal().Hash(), ""); err != nil {
		t.Error(err)
	}
	_, err := lock.Exec(t.Context(), take, "other/1", 1000, fence.NewSeal().Hash(), "")
	wantCode(t, err, "ZF001")
}

// If two callers have the same bare token, only one takes it.
func TestABareTokenIsTakenOnce(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(t, `SELECT fence.allow_unsealed('jobs/*')`)
	const callers = 4
	outcomes := make(chan error, callers)
	for range callers {
		lock := w.taker(t)
		go func() {
			_, err := lock.Exec(t.Context(), take, "jobs/1", 5, nil, "")
			outcomes <- err
		}()
	}
	taken := 0
	for range callers {
		err := <-outcomes
		if err == nil {
			taken++
			continue
		}
		if refused, ok := errors.AsType[*pgconn.PgError](err); !ok || refused.Code != "ZF001" {
			t.Errorf("%v; want ZF001", err)
		}
	}
	if taken != 1 {
		t.Errorf("%d of %d took it", taken, callers)
	}
}
