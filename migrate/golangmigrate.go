package migrate

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database"
	driver "github.com/golang-migrate/migrate/v4/database/pgx/v5"
	"github.com/golang-migrate/migrate/v4/source/iofs"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/fencegate/fencegate/migrations"
)

// This file isolates golang-migrate. golang-migrate takes no context; it reads
// ahead; it marks a step as dirty before it runs it, and leaves the mark if the step
// is interrupted; and its errors repeat a whole file and hide PostgreSQL's message.

// runState gives golang-migrate its own connection, and one step of a set's state at a time. When the context ends, the
// running step is cancelled and rolled back. (golang-migrate's own loop leaks a goroutine for each step that it read
// ahead and did not run; this way leaks at most one.)
//
// conn is the connection that holds the lock.
func runState(ctx context.Context, conn *pgx.Conn, url string, set migrations.Set) (err error) {
	defer func() { err = wrap("migrate up: state of the set "+set.Name, err) }()
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return err
	}
	src, err := iofs.New(set.State, ".")
	if err != nil {
		return fmt.Errorf("read the embedded migrations: %w", err)
	}
	db := stdlib.OpenDB(*config, stdlib.OptionAfterConnect(func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, sqlSession)
		return err
	}))
	session, err := onlySession(ctx, db)
	if err != nil {
		return errors.Join(err, db.Close())
	}
	stopCancelling := cancelAtEnd(ctx, session)
	defer stopCancelling()
	target, err := driver.WithInstance(db, &driver.Config{SchemaName: schema, MigrationsTable: set.Name + "_state"})
	if err != nil {
		return errors.Join(because(ctx, cause(err)), db.Close())
	}
	m, err := migrate.NewWithInstance("embedded", src, "postgresql", target)
	if err != nil {
		return errors.Join(err, target.Close())
	}
	defer func() {
		srcErr, dbErr := m.Close()
		err = errors.Join(err, srcErr, dbErr)
	}()
	for {
		version, err := settled(ctx, conn, m, target, set)
		switch {
		case err != nil:
			return because(ctx, err)
		case version == set.Latest:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
		if err := m.Steps(1); err != nil {
			stopCancelling() // what follows is short
			return because(ctx, explain(m, version, err))
		}
	}
}

// settled returns the version that a set's state has. Each step is one transaction that ends with a note of its
// version, so the note tells what is applied. A record that differs, because a step was interrupted or the record was
// lost or set back, is corrected.
//
// A schema that is missing here and that another role makes before the step is refused by the step's CREATE SCHEMA.
func settled(ctx context.Context, conn *pgx.Conn, m *migrate.Migrate, target database.Driver, set migrations.Set) (int, error) {
	recorded, dirty, err := target.Version()
	if err != nil {
		return 0, cause(err)
	}
	note, err := trustedNote(ctx, conn, set)
	switch {
	case err != nil:
		return 0, err
	case !note.known, note.version == recorded && !dirty:
		return recorded, nil
	}
	return note.version, wrap("settle an interrupted migration", cause(m.Force(note.version)))
}

// onlySession opens the only session of a database handle.
func onlySession(ctx context.Context, db *sql.DB) (session *pgconn.PgConn, err error) {
	db.SetMaxOpenConns(1)
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	err = conn.Raw(func(c any) error {
		session = c.(*stdlib.Conn).Conn().PgConn()
		return nil
	})
	return session, errors.Join(err, conn.Close())
}

const (
	cancelEvery   = 100 * time.Millisecond
	cancelTimeout = 2 * time.Second
)

// cancelAtEnd cancels the session's statements once the context ends, until stop is
// called; golang-migrate takes no context. It repeats the request, because one that
// arrives between two statements has no effect. stop may be called more than once.
func cancelAtEnd(ctx context.Context, session *pgconn.PgConn) (stop func()) {
	stopped, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-ctx.Done():
		case <-stopped:
			return
		}
		for again := time.NewTicker(cancelEvery); ; {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelTimeout)
			_ = session.CancelRequest(ctx)
			cancel()
			select {
			case <-again.C:
			case <-stopped:
				again.Stop()
				return
			}
		}
	}()
	return sync.OnceFunc(func() { close(stopped); <-done })
}

// because joins err with the context's cause if the context has ended.
func because(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil {
		return err
	}
	return errors.Join(context.Cause(ctx), err)
}

// explain makes an error of golang-migrate readable. If PostgreSQL refused a migration, it was rolled back as a whole,
// so explain clears the dirty mark. After the cause is removed, migrating again works.
func explain(m *migrate.Migrate, version int, err error) error {
	if _, begun := errors.AsType[database.Error](err); !begun {
		return cause(err)
	}
	err = cause(err)
	refused, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || refused.SeverityUnlocalized != "ERROR" {
		return fmt.Errorf("the step from version %d broke off: it was applied entirely or not at all. Migrate again, which finds out: %w", max(version, 0), err)
	}
	err = fmt.Errorf("the step from version %d was refused and rolled back: %w", max(version, 0), err)
	return errors.Join(err, cause(m.Force(version)))
}

// cause extracts PostgreSQL's error from one of golang-migrate, which repeats a whole migration and hides PostgreSQL's
// message. It is a value in errors from a migration, and a pointer in errors from the version's record.
func cause(err error) error {
	if failed, ok := errors.AsType[database.Error](err); ok {
		return failed.OrigErr
	}
	if failed, ok := errors.AsType[*database.Error](err); ok {
		return failed.OrigErr
	}
	return err
}
