//go:build unix

package pgwire_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/internal/testenv"
)

// A session that is ended while its COMMIT is unanswered must not hear that nothing was done: the cancel request may
// come too late for the COMMIT.
func TestSessionEndedDuringItsCommitIsToldThatItMayHaveTakenEffect(t *testing.T) {
	t.Parallel()
	w := setup(t)
	pool := w.pg.Pool(t)
	for _, sql := range []string{
		"CREATE TABLE t (n int)", "GRANT ALL ON t TO fence_writer",
		"CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_xact_lock(7); RETURN NULL; END'",
		"CREATE CONSTRAINT TRIGGER wait AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION wait()",
	} {
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	holder, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := holder.Exec(t.Context(), "SELECT pg_advisory_xact_lock(7)"); err != nil {
		t.Fatal(err)
	}
	conn := w.connect(w.config(w.pg.WriterURL))
	ended := make(chan error, 1)
	go func() {
		_, err := conn.Exec(t.Context(), "BEGIN; INSERT INTO t VALUES (1); COMMIT")
		ended <- err
	}()
	testenv.Eventually(t, "COMMIT waits", func() (waits bool) {
		err := pool.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = 7 AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))").Scan(&waits)
		return err == nil && waits
	})
	if all := w.srv.Sessions(); len(all) != 1 || !w.srv.End(all[0].ID) {
		t.Fatalf("sessions: %+v", all)
	}
	var fatal *pgconn.PgError
	if err := <-ended; !errors.As(err, &fatal) || fatal.Code != "57P01" {
		t.Fatal(err)
	}
	if !strings.Contains(fatal.Hint, "may or may not have taken effect") || strings.Contains(fatal.Hint, "Its transaction is rolled back") {
		t.Errorf("hint %q", fatal.Hint)
	}
	var waits bool
	err = pool.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))").Scan(&waits)
	if err != nil || waits {
		t.Errorf("the client has its error, and its COMMIT waits on: %v, %v", waits, err)
	}
	if err := holder.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
}
