// Command own-lock adds only the fence to locks of your own: the two common ones in PostgreSQL, SELECT … FOR UPDATE
// NOWAIT and pg_advisory_lock. Both end with their connection, and the holder is not notified.
//
// For each lock, a worker loses its connection without noticing, another one takes the lock, and the first one writes
// late. Without the fence its write succeeds; with the fence it is refused.
//
//	go run ./cmd/fencegate dev --ephemeral -- go run ./examples/own-lock
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
)

const resource = "jobs/1"

// A lock is the statement with which a worker locks, on its own connection. The lock ends with the connection.
type lock struct{ name, sql string }

var locks = []lock{
	{"FOR UPDATE NOWAIT", "SELECT FROM job_locks WHERE resource = 'jobs/1' FOR UPDATE NOWAIT"},
	{"pg_advisory_lock", "SELECT pg_advisory_lock(hashtext('jobs/1'))"},
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	err := run(ctx)
	cancel()
	if err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	db, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL")) // a login in the role fence_writer
	if err != nil {
		return err
	}
	defer db.Close()
	taking, err := pgxpool.New(ctx, os.Getenv("ARMING_DATABASE_URL")) // a login in the role fence_gateway
	if err != nil {
		return err
	}
	defer taking.Close()
	for _, sql := range []string{
		"DROP TABLE IF EXISTS jobs, job_locks; DROP SEQUENCE IF EXISTS job_tokens",
		"CREATE SEQUENCE job_tokens",
		"CREATE TABLE job_locks (resource text PRIMARY KEY)", "INSERT INTO job_locks VALUES ('jobs/1')",
		"CREATE TABLE jobs (id bigint PRIMARY KEY, state text NOT NULL)", "INSERT INTO jobs VALUES (1, 'new')",
	} {
		if _, err := db.Exec(ctx, sql); err != nil {
			return err
		}
	}
	for _, l := range locks {
		if err := withoutFence(ctx, db, l); err != nil {
			return fmt.Errorf("%s without the fence: %w", l.name, err)
		}
	}
	if _, err := db.Exec(ctx, "SELECT fence.protect('jobs', under => 'jobs/')"); err != nil {
		return err
	}
	for _, l := range locks {
		if err := withFence(ctx, db, taking, l); err != nil {
			return fmt.Errorf("%s with the fence: %w", l.name, err)
		}
	}
	return nil
}

// hold locks in a transaction on its own connection, and returns a function that loses the connection.
func (l lock) hold(ctx context.Context) (lose func(), err error) {
	conn, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return nil, err
	}
	tx, err := conn.Begin(ctx)
	if err == nil {
		_, err = tx.Exec(ctx, l.sql)
	}
	if err != nil {
		_ = conn.Close(ctx)
		return nil, err
	}
	return func() { _ = conn.Close(context.WithoutCancel(ctx)) }, nil
}

// retry holds the lock as soon as PostgreSQL has noticed that the connection is lost.
func (l lock) retry(ctx context.Context) (lose func(), err error) {
	for {
		lose, err := l.hold(ctx)
		if err == nil || ctx.Err() != nil {
			return lose, err
		}
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// withoutFence shows that the lock is exclusive, and the late write still succeeds.
func withoutFence(ctx context.Context, db *pgxpool.Pool, l lock) error {
	lose, err := l.hold(ctx)
	if err != nil {
		return err
	}
	lose() // a failover, a proxy's timeout, pg_terminate_backend; worker 1 does not notice
	lose, err = l.retry(ctx)
	if err != nil {
		return err
	}
	defer lose()
	for _, who := range []string{"worker 2", "worker 1"} { // worker 1 is late
		if _, err := db.Exec(ctx, "UPDATE jobs SET state = $1 WHERE id = 1", "done by "+who); err != nil {
			return err
		}
	}
	return tell(ctx, db, l, "without the fence", "done by worker 1")
}

// withFence has each holder take a token from a sequence before it reads or writes. The late write is refused.
func withFence(ctx context.Context, db, taking *pgxpool.Pool, l lock) error {
	lose, err := l.hold(ctx)
	if err != nil {
		return err
	}
	first, err := take(ctx, db, taking, "worker 1")
	lose()
	if err != nil {
		return err
	}
	lose, err = l.retry(ctx)
	if err != nil {
		return err
	}
	defer lose()
	second, err := take(ctx, db, taking, "worker 2")
	if err != nil {
		return err
	}
	if err := finish(ctx, db, second, "done by worker 2"); err != nil {
		return err
	}
	if err := finish(ctx, db, first, "done by worker 1"); !errors.Is(err, fence.ErrStale) {
		return fmt.Errorf("worker 1 should have been refused as stale; got: %w", err)
	}
	return tell(ctx, db, l, "with the fence", "done by worker 2")
}

// take raises the fence, commits and drains: afterwards no older holder can commit. It runs while the lock is held.
func take(ctx context.Context, db, taking *pgxpool.Pool, holder string) (fence.Grant, error) {
	g := fence.Grant{Resource: resource, Seal: fence.NewSeal()}
	if err := db.QueryRow(ctx, "SELECT nextval('job_tokens')").Scan(&g.Token); err != nil {
		return g, err
	}
	_, err := taking.Exec(ctx, "CALL fence.take($1, $2, $3, $4)", resource, int64(g.Token), g.Seal.Hash(), holder)
	return g, pgfence.Translate(err)
}

func finish(ctx context.Context, db *pgxpool.Pool, g fence.Grant, state string) error {
	return pgfence.InTx(ctx, db, g, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "UPDATE jobs SET state = $1 WHERE id = 1", state)
		return err
	})
}

func tell(ctx context.Context, db *pgxpool.Pool, l lock, how, want string) error {
	var state string
	if err := db.QueryRow(ctx, "SELECT state FROM jobs WHERE id = 1").Scan(&state); err != nil {
		return err
	}
	if state != want {
		return fmt.Errorf("the job is %q, not %q", state, want)
	}
	fmt.Printf("%-18s %-18s the job is %q\n", l.name, how, state)
	return nil
}
