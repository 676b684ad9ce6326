package pgfence_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/testenv"
)

const (
	sealA = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	sealB = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

func seal(t testing.TB, text string) fence.Seal {
	t.Helper()
	s, err := fence.ParseSeal(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// armed arms [orders] to 34 with sealA, superseding 33 with sealB.
func armed(t testing.TB, w world) {
	t.Helper()
	for token, s := range []string{33: sealB, 34: sealA} {
		if s == "" {
			continue
		}
		a := fence.Arming{Resource: orders, Token: fence.Token(token), SealHash: seal(t, s).Hash(), Holder: "worker"}
		if err := w.fence.Arm(t.Context(), a); err != nil {
			t.Fatal(err)
		}
	}
}

// attempt writes once under the given settings.
func attempt(t testing.TB, conn *pgx.Conn, level pgx.TxIsoLevel, resource, token string) error {
	t.Helper()
	tx, err := conn.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
	if err != nil {
		t.Fatal(err)
	}
	set(t, tx, resource, token)
	err = write(t.Context(), tx, 0)
	if err != nil {
		_ = tx.Rollback(t.Context())
		return err
	}
	return tx.Commit(t.Context())
}

func TestOnlyTheIssuedGrantPasses(t *testing.T) {
	t.Parallel()
	w := setup(t)
	armed(t, w)
	conn := w.session(t)
	cases := []struct {
		name, resource, token string
		want                  error // nil: passes
	}{
		{"the grant", orders, "34." + sealA, nil},
		{"the seal without its token", orders, "0." + sealA, nil},
		{"an encoded name", "orders%2F1001", "34." + sealA, nil},
		{"an encoded name and no token", "orders%2f1001", "0." + sealA, nil},
		{"superseded", orders, "33." + sealB, fence.ErrStale},
		{"superseded, with another seal", orders, "33." + sealA, fence.ErrStale},
		{"superseded, unsealed", orders, "33", fence.ErrStale},
		{"a superseded seal without its token", orders, "0." + sealB, fence.ErrStale},
		{"the token with another seal", orders, "34." + sealB, fence.ErrNeverIssued},
		{"the token without its seal", orders, "34", fence.ErrNeverIssued},
		{"a higher token with the seal", orders, "35." + sealA, fence.ErrNeverIssued},
		{"a higher token", orders, "35", fence.ErrNeverIssued},
		{"the highest token", orders, "9223372036854775807." + sealA, fence.ErrNeverIssued},
		{"nothing", "", "", fence.ErrNoGrant},
		{"no token", orders, "", fence.ErrNoGrant},
		{"no resource", "", "34." + sealA, fence.ErrNoGrant},
		{"another resource", "orders/1002", "34." + sealA, fence.ErrWrongResource},
		{"a longer resource", orders + "/x", "34." + sealA, fence.ErrWrongResource},
	}
	for _, level := range levels {
		for _, c := range cases {
			err := pgfence.Translate(attempt(t, conn, level, c.resource, c.token))
			if !errors.Is(err, c.want) {
				t.Errorf("%s, %s: got %v, want %v", level, c.name, err, c.want)
			}
		}
	}
}

func TestMalformedSettingsAreRefusedAndNotRepeated(t *testing.T) {
	t.Parallel()
	w := setup(t)
	armed(t, w)
	conn := w.session(t)
	const secret = "5ec2e7" // part of each malformed token, which might contain a seal
	cases := []struct{ name, resource, token, says string }{
		{"token 0", orders, "0", "token is 0"},
		{"negative token", orders, "-34." + secret, "not a decimal number"},
		{"signed token", orders, "+34." + secret, "not a decimal number"},
		{"leading zero", orders, "034." + sealA, "leading zero"},
		{"00 with the seal", orders, "00." + sealA, "leading zero"},
		{"not a number", orders, secret, "not a decimal number"},
		{"no number", orders, "." + sealA, "is empty"},
		{"space", orders, " 34." + sealA, "not a decimal number"},
		{"over int64", orders, "9223372036854775808." + sealA, "int64"},
		{"far over int64", orders, strings.Repeat("9", 400) + "." + secret, "int64"},
		{"short seal", orders, "34." + secret, "seal is not"},
		{"empty seal", orders, "34.", "seal is not"},
		{"long seal", orders, "34." + sealA + secret, "seal is not"},
		{"two dots", orders, "34." + sealA + "." + secret, "seal is not"},
		{"upper case seal", orders, "34." + strings.ToUpper(sealA), "seal is not"},
		{"newline", orders, "34." + sealA + "\n", "seal is not"},
		{"bad escape", "orders%zz", "34." + sealA, "percent-encoded"},
		{"cut escape", "orders%4", "34." + sealA, "percent-encoded"},
		{"NUL", "orders%00", "34." + sealA, "percent-encoded"},
		{"invalid UTF-8", "orders%ff", "34." + sealA, "percent-encoded"},
		{"control character", "orders%0A", "34." + sealA, "control character"},
		{"C1 control character", "orders%C2%85", "34." + sealA, "control character"},
		{"pattern", "orders/*", "34." + sealA, "kept for patterns"},
		{"too long", strings.Repeat("x", 513), "34." + sealA, "513 bytes"},
		{"too long when decoded", "x%41" + strings.Repeat("x", 512), "34." + sealA, "514 bytes"},
		{"too long to be decoded", strings.Repeat("%C3%A4", 257), "34." + sealA, "percent-encoded name of at most 512 bytes"},
	}
	for _, c := range cases {
		pg := refusalOf(t, attempt(t, conn, pgx.ReadCommitted, c.resource, c.token))
		if pg.Code != "ZF003" || !strings.Contains(pg.Message, c.says) {
			t.Errorf("%s: got %s %q, want ZF003 that says %q", c.name, pg.Code, pg.Message, c.says)
		}
		hidden(t, pg, sealA, strings.ToUpper(sealA), secret)
	}
}

// hidden checks that no field of an error shows a secret.
func hidden(t testing.TB, pg *pgconn.PgError, secrets ...string) {
	t.Helper()
	for _, s := range secrets {
		if strings.Contains(fmt.Sprintf("%+v", *pg), s) {
			t.Errorf("%q appears in %+v", s, *pg)
		}
	}
}

// The messages and hints in SQL and in package fence are the same, so that a PostgreSQL log, a Go error and an HTTP
// problem have the same text.
func TestRefusalsReadAlikeInSQLAndGo(t *testing.T) {
	t.Parallel()
	w := setup(t)
	armed(t, w)
	conn := w.session(t)
	rr := begin(t, w.session(t), pgx.RepeatableRead, fence.Grant{Resource: orders, Token: 34, Seal: seal(t, sealA)})
	if _, err := rr.Exec(t.Context(), `SELECT 1`); err != nil { // takes the snapshot
		t.Fatal(err)
	}
	raised := fence.Arming{Resource: orders, Token: 35, SealHash: fence.NewSeal().Hash()}
	if err := w.fence.Arm(t.Context(), raised); err != nil {
		t.Fatal(err)
	}
	cases := []struct {
		err  error
		want error
	}{
		{attempt(t, conn, pgx.ReadCommitted, orders, "34."+sealA), &fence.StaleError{Resource: orders, Presented: 34, Recorded: 35}},
		{attempt(t, conn, pgx.ReadCommitted, orders, "0."+sealA), &fence.StaleError{Resource: orders, Recorded: 35}},
		{write(t.Context(), rr, 0), &fence.StaleError{Resource: orders, Presented: 34}},
		{attempt(t, conn, pgx.ReadCommitted, "", ""), &fence.NoGrantError{Needed: orders}},
		{attempt(t, conn, pgx.ReadCommitted, orders, "35."+sealA), &fence.NeverIssuedError{Resource: orders, Presented: 35, Recorded: 35}},
		{attempt(t, conn, pgx.ReadCommitted, "other", "35."+sealA), &fence.WrongResourceError{Resource: "other", Needed: orders}},
	}
	for _, c := range cases {
		pg := refusalOf(t, c.err)
		err := pgfence.Translate(fmt.Errorf("save: %w", c.err))
		code, ok := fence.CodeOf(err)
		hint, message := pg.Hint, pg.Message
		if pg.Code == "ZF002" { // SQL also names the table, and says how each driver presents a grant
			begun, _, _ := strings.Cut(hint, ": ")
			hint, message = begun+" with the write.", strings.Replace(message, "write to public.work ", "write ", 1)
		}
		if !ok || code.SQLState != pg.Code || code.Hint != hint || !errors.Is(c.want, code.Err) {
			t.Errorf("SQL raised %s with HINT %q; Go's table says %+v", pg.Code, pg.Hint, code)
		}
		if message != c.want.Error() {
			t.Errorf("SQL says %q, Go %q", pg.Message, c.want)
		}
		if got := fmt.Sprintf("%#v", facts(err)); got != fmt.Sprintf("%#v", c.want) {
			t.Errorf("facts %s, want %#v", got, c.want)
		}
		if !strings.HasPrefix(err.Error(), "save: ") {
			t.Errorf("the caller's words are lost: %v", err)
		}
	}
}

// facts finds the error of package fence in a translated error.
func facts(err error) error {
	var (
		stale *fence.StaleError
		none  *fence.NoGrantError
		never *fence.NeverIssuedError
		wrong *fence.WrongResourceError
	)
	switch {
	case errors.As(err, &stale):
		return stale
	case errors.As(err, &none):
		return none
	case errors.As(err, &never):
		return never
	case errors.As(err, &wrong):
		return wrong
	}
	return nil
}

func TestOtherErrorsAreNotTranslated(t *testing.T) {
	t.Parallel()
	for _, err := range []error{nil, errors.New("x"), &pgconn.PgError{Code: "23505"}, &pgconn.PgError{Code: "ZF999"}} {
		if got := pgfence.Translate(err); got != err { //nolint:errorlint // identity is the point
			t.Errorf("%v became %v", err, got)
		}
	}
	hiddenDetail := pgfence.Translate(&pgconn.PgError{Code: "ZF001"})
	if !errors.Is(hiddenDetail, fence.ErrStale) || !errors.Is(pgfence.Translate(hiddenDetail), fence.ErrStale) {
		t.Error("a refusal without DETAIL, or one translated twice, is not ErrStale")
	}
}

func TestACheckCreatesNoFence(t *testing.T) {
	t.Parallel()
	w := setup(t)
	conn := w.session(t)
	for _, token := range []string{"34." + sealA, "0." + sealA, "34"} {
		err := pgfence.Translate(attempt(t, conn, pgx.ReadCommitted, orders, token))
		var never *fence.NeverIssuedError
		if !errors.As(err, &never) || never.Recorded != 0 {
			t.Errorf("%v, want never issued, with nothing recorded", err)
		}
	}
	if n := value[int](t, w, `SELECT count(*) FROM fence.resources`); n != 0 {
		t.Errorf("%d fences appeared", n)
	}
}

func TestCheckIssuedIsForATokenAuthenticatedElsewhere(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.acquire(t, orders, 34)
	gateway := testenv.PoolOf(t, w.pg.GatewayURL)
	check := func(resource string, token int64) error {
		_, err := gateway.Exec(t.Context(), `SELECT fence.check_issued($1, $2)`, resource, token)
		return err
	}
	if err := check(orders, 34); err != nil {
		t.Fatal(err)
	}
	w.acquire(t, orders, 35)
	wantCode(t, check(orders, 34), "ZF001")
	wantCode(t, check(orders, 36), "ZF003")
	wantCode(t, check("nowhere", 1), "ZF003")
	wantCode(t, check(orders, 0), "ZF003")
	wantCode(t, check("a*", 1), "ZF003")

	// A transaction that passed it is drained like any other.
	tx, err := gateway.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT fence.check_issued($1, 35)`, orders); err != nil {
		t.Fatal(err)
	}
	w.acquire(t, orders, 36)
	if err := tx.Commit(t.Context()); err == nil {
		t.Error("it committed after arm had returned")
	}
}

// At REPEATABLE READ a lock_timeout that ends the look at the fence's row says nothing about the row.
func TestALockTimeoutMakesNoGrantCurrent(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(t, orders, 34)
	tx := begin(t, w.session(t, "-c lock_timeout=20ms"), pgx.RepeatableRead, g) // takes the snapshot
	w.acquire(t, orders, 35)
	holder := connect(t, w.pg.URL)
	if _, err := holder.Exec(t.Context(), `BEGIN; LOCK TABLE fence.resources IN EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	wantCode(t, write(t.Context(), tx, 34), "55P03")
}

// The subtransaction around the check's lock writes nothing, so it has no number.
func TestAHundredChecksTakeNoTransactionID(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(t, `CREATE TABLE docs (id int); GRANT ALL ON docs TO PUBLIC; SELECT fence.protect('docs', per_row => $$'orders/' || id$$)`)
	tx := begin(t, w.session(t), pgx.ReadCommitted, w.acquire(t, orders, 34))
	for range 100 {
		for _, sql := range []string{`UPDATE work SET note = '' WHERE false`, `DELETE FROM docs`, `SELECT fence.check()`} {
			if _, err := tx.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
	}
	var id *string
	if err := tx.QueryRow(t.Context(), `SELECT pg_current_xact_id_if_assigned()::text`).Scan(&id); err != nil || id != nil {
		t.Errorf("transaction %v, %v", id, err)
	}
}
