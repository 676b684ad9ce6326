package migrate

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"

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

// run gives golang-migrate a connection of its own, and one migration at a time:
// a context that ends stops it between two. (Its own loop reads ahead, and leaves
// a goroutine behind for each migration that it read and did not run.)
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
	target, err := openTarget(ctx, db)
	if err != nil {
		return errors.Join(err, db.Close())
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
		version, dirty, err := target.Version()
		switch {
		case err != nil:
			return err
		case version > int(newest):
			return fmt.Errorf("the database is at version %d, which this program, at %d, does not know: use a newer program", version, newest)
		case dirty:
			if err := settle(ctx, conn, m, version); err != nil {
				return err
			}
			continue
		case version == dir.end(int(newest)):
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
		if err := m.Steps(dir.step); err != nil {
			return explain(m, version, err)
		}
	}
}

// settle ends the doubt that an interrupted migration to a version left. Each is
// one transaction that ends with a note of its version, so the note tells
// whether it was applied.
func settle(ctx context.Context, conn *pgx.Conn, m *migrate.Migrate, version int) error {
	var note *string
	err := conn.QueryRow(ctx, sqlApplied).Scan(&note)
	applied := database.NilVersion
	switch {
	case errors.Is(err, pgx.ErrNoRows): // no schema: nothing is applied
	case err != nil:
		return fmt.Errorf("look what is applied: %w", err)
	case note == nil:
		return &DirtyError{Version: version}
	default:
		if applied, err = strconv.Atoi(strings.TrimPrefix(*note, notePrefix)); err != nil || applied < 1 {
			return &DirtyError{Version: version}
		}
	}
	return wrap("settle an interrupted migration", m.Force(applied))
}

func openTarget(ctx context.Context, db *sql.DB) (database.Driver, error) {
	if err := db.PingContext(ctx); err != nil { // the driver's own doesn't know the context
		return nil, err
	}
	return driver.WithInstance(db, &driver.Config{SchemaName: schema, MigrationsTable: table})
}

// explain makes an error of golang-migrate readable. Where PostgreSQL refused a
// migration, it was rolled back as a whole, so the mark that it is under way is
// taken off: after the cause is removed, migrating again just works.
func explain(m *migrate.Migrate, version int, err error) error {
	var failed database.Error
	var refused *pgconn.PgError
	if !errors.As(err, &failed) || !errors.As(failed.OrigErr, &refused) || refused.Severity != "ERROR" {
		return err
	}
	err = fmt.Errorf("the step from version %d was refused and rolled back: %w", max(version, 0), failed.OrigErr)
	return errors.Join(err, m.Force(version))
}
