package testenv

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Blocked calls call, which must wait for the rows of a table, and returns its result. A transaction of the test holds
// the rows until call waits and during has returned.
func (pg PG) Blocked(t testing.TB, table string, call func() error, during func()) error {
	t.Helper()
	pool := pg.Pool(t)
	tx, err := pool.Begin(t.Context())
	if err == nil {
		_, err = tx.Exec(t.Context(), `SELECT FROM `+pgx.Identifier{"fence", table}.Sanitize()+` FOR UPDATE`)
	}
	if err != nil {
		t.Fatal(err)
	}
	called := make(chan error, 1)
	go func() { called <- call() }()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for waits := false; !waits; {
		select {
		case err := <-called:
			t.Fatalf("the call did not wait for fence.%s: %v", table, err)
		case <-tick.C:
		}
		const sql = `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')`
		if err := pool.QueryRow(t.Context(), sql).Scan(&waits); err != nil {
			t.Fatal(err)
		}
	}
	during()
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	return <-called
}
