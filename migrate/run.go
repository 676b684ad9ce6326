package migrate

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
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

// direction is up or down.
type direction struct {
	name string
	step int
	end  func(latest int) int // the version at which there is nothing more to do
}

var (
	up   = direction{"up", 1, func(latest int) int { return latest }}
	down = direction{"down", -1, func(int) int { return database.NilVersion }}
)

// run gives golang-migrate a connection of its own, and one migration at a time.
// A context that ends cancels the one that is under way, which is then rolled
// back. (golang-migrate's own loop reads ahead, and leaves a goroutine behind for
// each migration that it read and did not run; one at most this way. And it knows no
// context.)
//
// conn is the connection that holds the lock.
func run(ctx context.Context, conn *pgx.Conn, url string, dir direction) (err error) {
	defer func() { err = wrap("migrate "+dir.name, err) }()
	newest, err := latest()
	if err != nil {
		return err
	}
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return err
	}
	src, err := iofs.New(migrations.FS, ".")
	if err != nil {
		return fmt.Errorf("read the embedded migrations: %w", err)
	}
	db := stdlib.OpenDB(*config)
	session, err := onlySession(ctx, db)
	if err != nil {
		return errors.Join(err, db.Close())
	}
	stopCancelling := cancelAtEnd(ctx, session)
	defer stopCancelling()
	target, err := driver.WithInstance(db, &driver.Config{SchemaName: schema, MigrationsTable: table})
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
		version, err := settled(ctx, conn, m, target)
		switch {
		case err != nil:
			return because(ctx, err)
		case version > int(newest):
			return fmt.Errorf("the database is at version %d, which this program, at %d, does not know: use a newer program", version, newest)
		case version == dir.end(int(newest)):
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
		if err := m.Steps(dir.step); err != nil {
			stopCancelling() // what follows is short
			return because(ctx, explain(m, version, err))
		}
	}
}

// settled is the version that the database is at. Each migration is one
// transaction that ends with a note of its version, so the note tells what is
// applied; a record that says otherwise, of a migration that was interrupted, or
// that was lost or set back, is corrected. One of a newer program is left alone.
func settled(ctx context.Context, conn *pgx.Conn, m *migrate.Migrate, target database.Driver) (int, error) {
	recorded, dirty, err := target.Version()
	if err != nil {
		return 0, cause(err)
	}
	newest, err := latest()
	if err != nil || recorded > int(newest) {
		return recorded, err
	}
	applied, known, err := noted(ctx, conn)
	switch {
	case err != nil:
		return 0, err
	case !known && dirty:
		return 0, &DirtyError{Version: recorded}
	case !known, applied == recorded && !dirty:
		return recorded, nil
	}
	return applied, wrap("settle an interrupted migration", cause(m.Force(applied)))
}

// noted is the version that the last migration noted, -1 where the schema is not
// there; not known where the note is missing or was changed.
func noted(ctx context.Context, conn *pgx.Conn) (version int, known bool, err error) {
	var note *string
	switch err := conn.QueryRow(ctx, sqlApplied).Scan(&note); {
	case errors.Is(err, pgx.ErrNoRows):
		return database.NilVersion, true, nil
	case err != nil:
		return 0, false, fmt.Errorf("look what is applied: %w", err)
	case note == nil:
		return 0, false, nil
	}
	version, err = strconv.Atoi(strings.TrimPrefix(*note, notePrefix))
	return version, err == nil && version > 0, nil
}

// onlySession opens the one session that a database handle will have.
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

// cancelAtEnd cancels what a session does once the context ends, until stop is
// called, once or more often: golang-migrate knows no context. Again and again, for a request that
// comes between two statements is lost.
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

// because is err, and what ended the context where it has ended.
func because(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil {
		return err
	}
	return errors.Join(context.Cause(ctx), err)
}

// explain makes an error of golang-migrate readable. Where PostgreSQL refused a
// migration, it was rolled back as a whole, so the mark that it is under way is
// taken off: after the cause is removed, migrating again just works.
func explain(m *migrate.Migrate, version int, err error) error {
	if _, begun := errors.AsType[database.Error](err); !begun {
		return cause(err)
	}
	err = cause(err)
	refused, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || refused.SeverityUnlocalized != "ERROR" {
		return fmt.Errorf("the step from version %d broke off, and was applied entirely or not at all; migrate again, which looks what it was: %w", max(version, 0), err)
	}
	err = fmt.Errorf("the step from version %d was refused and rolled back: %w", max(version, 0), err)
	return errors.Join(err, cause(m.Force(version)))
}

// cause is the error behind one of golang-migrate, which repeats a whole migration
// and hides what PostgreSQL said: by value from a migration, by pointer from the
// record of the version.
func cause(err error) error {
	if failed, ok := errors.AsType[database.Error](err); ok {
		return failed.OrigErr
	}
	if failed, ok := errors.AsType[*database.Error](err); ok {
		return failed.OrigErr
	}
	return err
}
