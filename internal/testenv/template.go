//go:build unix

package testenv

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/migrate"
	"github.com/fencegate/fencegate/migrations"
)

// oneAtATime is the advisory lock under which test binaries that share a server create logins and templates.
const oneAtATime = 0x66656e6365 // "fence"

// underLock runs f on a superuser's session that holds the lock.
func (c *cluster) underLock(ctx context.Context, f func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, c.url("postgres", "", ""))
	if err != nil {
		return fmt.Errorf("PostgreSQL at %s: %w", c.base.Host, err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // frees the lock
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock($1)", int64(oneAtATime)); err != nil {
		return err
	}
	return f(conn)
}

// makeLogins creates the shared logins, and determines how to copy a database. The password is derived from the
// superuser's, so that test binaries which share a server agree on it.
func (c *cluster) makeLogins(ctx context.Context) error {
	sum := sha256.Sum256([]byte("fencegate test logins\n" + c.base.User.String()))
	c.logins = hex.EncodeToString(sum[:16])
	return c.underLock(ctx, func(conn *pgx.Conn) error {
		// FILE_COPY takes half the time of the default since PostgreSQL
		// 15, as nothing is flushed here. Before 15 it is the only one.
		const strategy = "SELECT CASE WHEN current_setting('server_version_num')::int >= 150000 THEN ' STRATEGY FILE_COPY' ELSE '' END"
		if err := conn.QueryRow(ctx, strategy).Scan(&c.strategy); err != nil {
			return err
		}
		for _, login := range []string{loginGateway, loginWriter, loginOther} {
			var exists bool
			if err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1)", login).Scan(&exists); err != nil {
				return err
			}
			verb := "CREATE"
			if exists {
				verb = "ALTER"
			}
			if _, err := conn.Exec(ctx, fmt.Sprintf("%s ROLE %s LOGIN PASSWORD '%s'", verb, login, c.logins)); err != nil {
				return fmt.Errorf("login %s: %w", login, err)
			}
		}
		return nil
	})
}

// makeTemplate creates the database with the migrations applied, once for each set of migrations on a server.
func (c *cluster) makeTemplate() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), startPatience)
	defer cancel()
	hash, err := hashOfMigrations()
	if err != nil {
		return "", err
	}
	name := "fencegate_template_" + hash
	return name, c.underLock(ctx, func(conn *pgx.Conn) error {
		var exists bool
		if err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", name).Scan(&exists); err != nil || exists {
			return err
		}
		making := name + "_making" // renamed when complete: an interrupted run leaves no partial template
		for _, sql := range []string{"DROP DATABASE IF EXISTS " + making + " WITH (FORCE)", "CREATE DATABASE " + making + " TEMPLATE template0"} {
			if _, err := conn.Exec(ctx, sql); err != nil {
				return fmt.Errorf("template: %w", err)
			}
		}
		if err := migrate.Up(ctx, c.url(making, "", ""), migrate.All); err != nil {
			return fmt.Errorf("template: %w", err)
		}
		grants := fmt.Sprintf("GRANT fence_gateway TO %s; GRANT fence_writer TO %s", loginGateway, loginWriter)
		if err := c.exec(ctx, making, grants); err != nil {
			return fmt.Errorf("roles of the migrations: %w", err)
		}
		_, err := conn.Exec(ctx, "ALTER DATABASE "+making+" RENAME TO "+name)
		return err
	})
}

// hashOfMigrations identifies a set of migrations.
func hashOfMigrations() (string, error) {
	sum := sha256.New()
	// WalkDir goes in the order of the names.
	err := fs.WalkDir(migrations.FS, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := fs.ReadFile(migrations.FS, name)
		fmt.Fprintf(sum, "%s %d\n%s", name, len(text), text)
		return err
	})
	if err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil))[:16], nil
}
