package pgfence_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
)

const users = "users/7"

// setupMany is a world with a table for each kind of rule: work needs [orders], people needs [users], and the table
// below needs any resource whose name begins with team/.
func setupMany(t testing.TB, opts ...pgfence.Option) world {
	t.Helper()
	w := setup(t, opts...)
	w.exec(t, `CREATE TABLE people (token bigint); CREATE TABLE below (token bigint); GRANT ALL ON people, below TO PUBLIC`)
	w.exec(t, `SELECT fence.protect('people', resource => $1)`, users)
	w.exec(t, `SELECT fence.protect('below', under => 'team/')`)
	return w
}

func insertInto(ctx context.Context, tx pgx.Tx, table string, token fence.Token) error {
	_, err := tx.Exec(ctx, `INSERT INTO `+table+` (token) VALUES ($1)`, int64(token))
	return err
}

func TestAGuardPicksTheGrantThatItsTableNeeds(t *testing.T) {
	t.Parallel()
	w := setupMany(t)
	a, b, c, d := w.acquire(t, orders, 3), w.acquire(t, users, 4), w.acquire(t, "team/a=b,c%", 5), w.acquire(t, "team/b", 1)
	for name, grants := range map[string][]fence.Grant{"in order": {a, c, d, b}, "in another order": {b, d, a, c}} {
		for _, level := range levels {
			opts := pgfence.TxOptions{TxOptions: pgx.TxOptions{IsoLevel: level}}
			err := pgfence.InTxAll(t.Context(), w.writer, opts, grants, func(tx pgx.Tx) error {
				return errors.Join(insertInto(t.Context(), tx, "people", 4), insertInto(t.Context(), tx, "work", 3), insertInto(t.Context(), tx, "below", 5),
					pgfence.Check(t.Context(), tx))
			})
			if err != nil {
				t.Errorf("%s, %s: %v", name, level, err)
			}
		}
	}
	if n := value[int](t, w, `SELECT count(*) FROM work w JOIN people p ON w.token = 3 AND p.token = 4`); n != 36 {
		t.Errorf("%d pairs of rows, want 6 of each", n)
	}
}

func TestAGrantThatIsMissingAmongSeveral(t *testing.T) {
	t.Parallel()
	w := setupMany(t)
	a, b, c := w.acquire(t, orders, 3), w.acquire(t, users, 4), w.acquire(t, "team/a", 5)
	for table, c := range map[string]struct {
		grants []fence.Grant
		needed string
	}{"work": {[]fence.Grant{b, c}, orders}, "people": {[]fence.Grant{a, c}, users}, "below": {[]fence.Grant{a, b}, "team/*"}} {
		err := pgfence.InTxAll(t.Context(), w.writer, pgfence.TxOptions{}, c.grants, func(tx pgx.Tx) error {
			return insertInto(t.Context(), tx, table, 1)
		})
		var wrong *fence.WrongResourceError
		if !errors.As(err, &wrong) || wrong.Needed != c.needed {
			t.Errorf("%s: %v, %+v", table, err, wrong)
		}
		if strings.Contains(err.Error(), a.Seal.Reveal()) || strings.Contains(err.Error(), b.Seal.Reveal()) {
			t.Errorf("the seal shows in %v", err)
		}
	}
	tx, err := w.session(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	err = pgfence.Translate(insertInto(t.Context(), tx, "work", 1))
	var none *fence.NoGrantError
	if !errors.As(err, &none) || none.Needed != orders {
		t.Errorf("no grant: %v", err)
	}
	_ = tx.Rollback(t.Context())
}

func TestUseReplacesWhatWasPresentedAndSavepointsBringItBack(t *testing.T) {
	t.Parallel()
	w := setupMany(t)
	a, b := w.acquire(t, orders, 3), w.acquire(t, users, 4)
	tx, err := w.session(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	try := func(table string) string {
		nested, err := tx.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		err = insertInto(t.Context(), nested, table, 0)
		_ = nested.Rollback(t.Context())
		if err == nil {
			return ""
		}
		return refusalOf(t, err).Code
	}
	want := func(when, work, people string) {
		t.Helper()
		if gotWork, gotPeople := try("work"), try("people"); gotWork != work || gotPeople != people {
			t.Errorf("%s: %q and %q, want %q and %q", when, gotWork, gotPeople, work, people)
		}
	}
	use := func(tx pgx.Tx, grants ...fence.Grant) {
		t.Helper()
		if err := pgfence.Use(t.Context(), tx, grants...); err != nil {
			t.Fatal(err)
		}
	}
	want("before", "ZF002", "ZF002")
	use(tx, a, b)
	want("both", "", "")
	use(tx, b)
	want("only the second", "ZF004", "")
	nested, err := tx.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	use(nested, b, a)
	want("both in a savepoint", "", "")
	_ = nested.Rollback(t.Context())
	want("after ROLLBACK TO", "ZF004", "")
	_ = tx.Rollback(t.Context())
	if got := value[string](t, w, `SELECT coalesce(current_setting('fence.grants', true), '')`); got != "" {
		t.Errorf("left over: %q", got)
	}
}

func TestSeveralGrantsComeWithTheConnection(t *testing.T) {
	t.Parallel()
	w := setupMany(t)
	a, b := w.acquire(t, orders, 3), w.acquire(t, users, 4)
	list := fmt.Sprintf("-c fence.grants=%s=%s,%s=%s", fence.EscapeResource(orders), a.Presented(), fence.EscapeResource(users), b.Presented())
	conn := w.session(t, list)
	for _, table := range []string{"work", "people"} {
		if _, err := conn.Exec(t.Context(), `INSERT INTO `+table+` (token) VALUES (1)`); err != nil {
			t.Errorf("%s: %v", table, err)
		}
	}
	_, err := conn.Exec(t.Context(), `INSERT INTO below (token) VALUES (1)`)
	wantCode(t, err, "ZF004")
	w.acquire(t, users, 5)
	_, err = conn.Exec(t.Context(), `INSERT INTO people (token) VALUES (1)`)
	wantCode(t, err, "ZF001")
	if _, err = conn.Exec(t.Context(), `INSERT INTO work (token) VALUES (1)`); err != nil {
		t.Errorf("the other grant is current: %v", err)
	}
	for _, malformed := range []string{"garbage", "=1", "a=", "a=1=2", "a=1,,b=2", "a=1,", "%zz=1", "a=01", "a=1.xyz"} {
		_, err = w.session(t, "-c fence.grants="+malformed).Exec(t.Context(), `SELECT fence.check()`)
		wantCode(t, err, "ZF003")
	}
}

func TestUseRefusesListsThatMakeNoSense(t *testing.T) {
	t.Parallel()
	w := setupMany(t)
	a := w.acquire(t, orders, 3)
	for name, grants := range map[string][]fence.Grant{"none": {}, "twice": {a, a}, "malformed": {a, {Resource: "x*", Token: 1}}} {
		err := pgfence.InTxAll(t.Context(), w.writer, pgfence.TxOptions{}, grants, func(pgx.Tx) error { t.Error("fn ran"); return nil })
		if !errors.Is(err, fence.ErrInvalid) && !errors.Is(err, fence.ErrNoGrant) {
			t.Errorf("%s: %v", name, err)
		}
	}
	conn := w.session(t)
	for _, args := range []string{`'{}', '{}'`, `NULL, NULL`, `'{a}', '{}'`, `'{a,b}', '{1}'`, `'{a,a}', '{1,1}'`, `'{a,NULL}', '{1,1}'`, `'{a,b}', '{1,"2,c=3"}'`} {
		_, err := conn.Exec(t.Context(), `SELECT fence.use(x::text[], y::text[]) FROM (SELECT `+args+`) z(x, y)`)
		wantCode(t, err, "22023")
	}
}

// One of two grants goes stale, at each point of a transaction under both.
func TestOneStaleGrantOfTwo(t *testing.T) {
	t.Parallel()
	for _, level := range levels {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			w := setupMany(t)
			a, b := w.acquire(t, orders, 3), w.acquire(t, users, 4)
			grants := []fence.Grant{a, b}
			opts := pgfence.TxOptions{TxOptions: pgx.TxOptions{IsoLevel: level}}

			// Inside the transaction: arming ends it, whichever table it has written.
			err := pgfence.InTxAll(t.Context(), w.writer, opts, grants, func(tx pgx.Tx) error {
				if err := insertInto(t.Context(), tx, "work", 3); err != nil {
					return err
				}
				w.acquire(t, users, 5)
				return insertInto(t.Context(), tx, "work", 3)
			})
			if err == nil || errors.Is(err, fence.ErrUnknown) {
				t.Errorf("raised inside: %v", err)
			}

			// Before the transaction: refused at once.
			err = pgfence.InTxAll(t.Context(), w.writer, opts, grants, func(pgx.Tx) error { t.Error("fn ran"); return nil })
			var stale *fence.StaleError
			if !errors.As(err, &stale) || stale.Resource != users {
				t.Errorf("raised before: %v", err)
			}

			// Without Use each table checks its own grant, and the snapshot is older than the raise.
			w.exec(t, `DELETE FROM fence.resources WHERE resource = $1`, users)
			b = w.acquire(t, users, 6)
			tx, err := w.session(t).BeginTx(t.Context(), opts.TxOptions)
			if err != nil {
				t.Fatal(err)
			}
			const set = `SELECT set_config('fence.grants', $1, true)`
			if _, err := tx.Exec(t.Context(), set, users+"="+b.Presented()+","+orders+"="+a.Presented()); err != nil {
				t.Fatal(err)
			}
			w.acquire(t, users, 7)
			if err := insertInto(t.Context(), tx, "work", 3); err != nil {
				t.Errorf("the other grant: %v", err)
			}
			wantCode(t, insertInto(t.Context(), tx, "people", 3), "ZF001")
			_ = tx.Rollback(t.Context())
			if n := value[int](t, w, `SELECT (SELECT count(*) FROM work) + (SELECT count(*) FROM people)`); n != 0 {
				t.Errorf("%d rows", n)
			}
		})
	}
}

// A table with a prefix requires that every presented grant below it is current.
func TestAPrefixAsksForEveryGrantBelowIt(t *testing.T) {
	t.Parallel()
	w := setupMany(t)
	a, b := w.acquire(t, "team/a", 3), w.acquire(t, "team/b", 4)
	conn := w.session(t, fmt.Sprintf("-c fence.grants=team/a=%s,team/b=%s", a.Presented(), b.Presented()))
	insert := func() error {
		_, err := conn.Exec(t.Context(), `INSERT INTO below (token) VALUES (1)`)
		return err
	}
	if err := insert(); err != nil {
		t.Fatal(err)
	}
	w.acquire(t, "team/b", 5)
	wantCode(t, insert(), "ZF001")
}

// Writers with two unsealed tokens, which raise the fences themselves, lock them in the same order whatever order
// they name.
func TestUseOfSeveralDoesNotDeadlock(t *testing.T) {
	t.Parallel()
	w := setupMany(t)
	w.exec(t, `INSERT INTO fence.unsealed VALUES ('u/*')`)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			grants := []fence.Grant{{Resource: "u/a"}, {Resource: "u/b"}, {Resource: "u/c"}}
			for i := range 25 {
				for n := range grants {
					grants[n].Token = fence.Token(1 + 4*i + worker)
				}
				grants[0], grants[1], grants[2] = grants[2], grants[0], grants[1]
				if worker%2 == 0 {
					grants[0], grants[1] = grants[1], grants[0]
				}
				err := pgfence.InTxAll(ctx, w.writer, pgfence.TxOptions{}, grants, func(pgx.Tx) error { return nil })
				if err != nil && !errors.Is(err, fence.ErrStale) {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if got := value[int](t, w, `SELECT count(DISTINCT token) FROM fence.resources WHERE resource LIKE 'u/%'`); got != 1 {
		t.Errorf("the fences stand at %d tokens", got)
	}
}

// A grant in fence.resource and others in fence.grants, which fit the same table: each must be current, and keeps its lock.
func TestAGrantBesideAListIsNoShortWay(t *testing.T) {
	t.Parallel()
	for _, table := range []string{"below", "stamped", "each"} {
		t.Run(table, func(t *testing.T) {
			t.Parallel()
			w := setupMany(t)
			w.exec(t, `CREATE TABLE stamped (token bigint); GRANT ALL ON stamped TO PUBLIC; SELECT fence.protect('stamped', under => 'team/', stamp => 'token')`)
			w.exec(t, `CREATE TABLE each (token bigint); GRANT ALL ON each TO PUBLIC; SELECT fence.protect('each', per_row => $$'team/' || token / 3$$)`)
			a, b := w.acquire(t, "team/1", 3), w.acquire(t, "team/2", 4)
			conn := w.session(t, "-c fence.resource=team/1", "-c fence.token="+a.Presented(), "-c fence.grants=team/2="+b.Presented())
			tx, err := conn.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := insertInto(t.Context(), tx, table, 3); err != nil {
				t.Fatal(err)
			}
			if value[bool](t, w, `SELECT fence.arm('team/2', 5, $1, '')`, fence.NewSeal().Hash()) {
				t.Error("the other grant was superseded beside an uncommitted write")
			}
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			w.acquire(t, "team/2", 5)
			_, err = conn.Exec(t.Context(), `INSERT INTO `+table+` (token) VALUES (3)`)
			wantCode(t, err, "ZF001")
		})
	}
}
