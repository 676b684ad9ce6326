package migrate

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/fencegate/fencegate/migrations"
	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database"
	driver "github.com/golang-migrate/migrate/v4/database/pgx/v5"
	"github.com/golang-migrate/migrate/v4/source"
	"github.com/golang-migrate/migrate/v4/source/iofs"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
)

// direction is up or down.
type direction struct {
	name string
	run  func(*migrate.Migrate) error
	// before returns the version that the database had before the migration that
	// left it marked as dirty at v.
	before func(src source.Driver, v int) int
}

var (
	up = direction{"up", (*migrate.Migrate).Up, func(src source.Driver, v int) int {
		if prev, err := src.Prev(uint(v)); err == nil { //nolint:gosec // a version of the embedded migrations
			return int(prev) //nolint:gosec // likewise
		}
		return database.NilVersion
	}}
	down = direction{"down", (*migrate.Migrate).Down, func(src source.Driver, v int) int {
		next, err := src.First()
		if v != database.NilVersion {
			next, err = src.Next(uint(v)) //nolint:gosec // a version of the embedded migrations
		}
		if err != nil {
			return v
		}
		return int(next) //nolint:gosec // likewise
	}}
)

// run gives golang-migrate a connection of its own. A context that ends stops it
// between two migrations.
func run(ctx context.Context, url string, dir direction) (err error) {
	defer func() { err = wrap("migrate "+dir.name, err) }()
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
	stop := context.AfterFunc(ctx, func() { m.GracefulStop <- true })
	defer stop()

	err = dir.run(m)
	switch {
	case errors.Is(err, migrate.ErrNoChange):
		return nil
	case err == nil:
		return context.Cause(ctx)
	}
	return explain(m, src, target, dir, err)
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
func explain(m *migrate.Migrate, src source.Driver, target database.Driver, dir direction, err error) error {
	var dirty migrate.ErrDirty
	if errors.As(err, &dirty) {
		return &DirtyError{Version: dirty.Version}
	}
	var failed database.Error
	var refused *pgconn.PgError
	if !errors.As(err, &failed) || !errors.As(failed.OrigErr, &refused) || refused.Severity != "ERROR" {
		return err
	}
	version, marked, versionErr := target.Version()
	if versionErr != nil || !marked {
		return errors.Join(failed.OrigErr, versionErr)
	}
	err = fmt.Errorf("the migration at version %d was refused and rolled back: %w", version, failed.OrigErr)
	return errors.Join(err, m.Force(dir.before(src, version)))
}
