package devstack

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/internal/pgserver"
	"github.com/fencegate/fencegate/migrate"
)

// names are what provision makes in a server: a login for people, which owns the
// database, and two for the gateway, whose passwords are new at each start.
type names struct{ database, people, password, gateway, sql string }

// privateNames: the server is ours and listens on loopback only.
func privateNames() names {
	return names{database: "dev", people: "dev", password: "dev", gateway: "fencegate_dev_gateway", sql: "fencegate_dev_sql"}
}

// foreignNames: somebody else's server. The names are ours, and so are the logins;
// no password is guessable.
func foreignNames() names {
	return names{database: "fencegate_dev", people: "fencegate_dev", password: rand.Text(), gateway: "fencegate_dev_gateway", sql: "fencegate_dev_sql"}
}

// urls are the addresses of the development database, one for each login.
type urls struct{ admin, gateway, sql, people string }

// provision makes the database and its logins where they are missing, migrates, and
// says where leases come from: the stack has the only gateway. It may be repeated.
func provision(ctx context.Context, serverURL string, n names, source string) (urls, error) {
	server, err := pgx.Connect(ctx, serverURL)
	if err != nil {
		return urls{}, err
	}
	defer func() { _ = server.Close(context.WithoutCancel(ctx)) }()
	if err := ensureLogin(ctx, server, n.people, n.password); err != nil {
		return urls{}, err
	}
	if err := ensureDatabase(ctx, server, n); err != nil {
		return urls{}, err
	}
	var u urls
	if u.admin, err = withDatabase(serverURL, n.database, nil); err != nil {
		return urls{}, err
	}
	if err := migrate.Up(ctx, u.admin, migrate.All); err != nil {
		return urls{}, err
	}
	for _, l := range []struct {
		login, password string
		groups          []string
		url             *string
	}{
		{n.people, n.password, []string{"fence_writer", "fence_protector"}, &u.people},
		{n.gateway, rand.Text(), []string{"fence_gateway"}, &u.gateway},
		{n.sql, rand.Text(), []string{"fence_writer"}, &u.sql},
	} {
		if err := ensureLogin(ctx, server, l.login, l.password); err != nil {
			return urls{}, err
		}
		for _, group := range l.groups {
			if err := grant(ctx, server, group, l.login); err != nil {
				return urls{}, err
			}
		}
		if *l.url, err = withDatabase(serverURL, n.database, url.UserPassword(l.login, l.password)); err != nil {
			return urls{}, err
		}
	}
	return u, errors.Join(onDatabase(ctx, u.admin, letSQLWrite(n)), onDatabase(ctx, u.admin, "SELECT fence.set_source('"+source+"')"))
}

// letSQLWrite gives the login of SQL over HTTP its rights on the tables that
// people make.
func letSQLWrite(n names) string {
	return "ALTER DEFAULT PRIVILEGES FOR ROLE " + quoted(n.people) + " GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO " + quoted(n.sql)
}

func onDatabase(ctx context.Context, adminURL, sql string) error {
	conn, err := pgx.Connect(ctx, adminURL)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	_, err = conn.Exec(ctx, sql)
	return err
}

// unprovision removes what provision made, but for the roles fence_*, which other
// databases may use.
func unprovision(ctx context.Context, serverURL string, n names) error {
	server, err := pgx.Connect(ctx, serverURL)
	if err != nil {
		return err
	}
	defer func() { _ = server.Close(context.WithoutCancel(ctx)) }()
	_, err = server.Exec(ctx, "DROP DATABASE IF EXISTS "+quoted(n.database)+" WITH (FORCE)")
	for _, login := range []string{n.people, n.gateway, n.sql} {
		_, dropErr := server.Exec(ctx, "DROP ROLE IF EXISTS "+quoted(login))
		err = errors.Join(err, dropErr)
	}
	return err
}

func quoted(name string) string { return pgx.Identifier{name}.Sanitize() }

// duplicate_object, duplicate_database
const (
	stateDuplicateObject   = "42710"
	stateDuplicateDatabase = "42P04"
)

func alreadyThere(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == stateDuplicateObject || pg.Code == stateDuplicateDatabase)
}

func ensureDatabase(ctx context.Context, conn *pgx.Conn, n names) error {
	_, err := conn.Exec(ctx, "CREATE DATABASE "+quoted(n.database)+" OWNER "+quoted(n.people))
	if err != nil && !alreadyThere(err) {
		return fmt.Errorf("create the database %s: %w", n.database, err)
	}
	return nil
}

// ensureLogin sends the password as a SCRAM verifier, so that no log of the
// server can hold it.
func ensureLogin(ctx context.Context, conn *pgx.Conn, name, password string) error {
	verifier, err := pgserver.Verifier(password, pgserver.Iterations)
	if err != nil {
		return err
	}
	login := quoted(name)
	if _, err := conn.Exec(ctx, "CREATE ROLE "+login+" LOGIN"); err != nil && !alreadyThere(err) {
		return fmt.Errorf("create the login %s: %w", name, err)
	}
	if _, err := conn.Exec(ctx, "ALTER ROLE "+login+" PASSWORD '"+verifier+"'"); err != nil {
		return fmt.Errorf("set the password of the login %s: %w", name, err)
	}
	return nil
}

func grant(ctx context.Context, conn *pgx.Conn, group, login string) error {
	if _, err := conn.Exec(ctx, "GRANT "+quoted(group)+" TO "+quoted(login)); err != nil {
		return fmt.Errorf("grant %s to %s: %w", group, login, err)
	}
	return nil
}

// withDatabase is serverURL with another database, and another login unless nil.
func withDatabase(serverURL, database string, login *url.Userinfo) (string, error) {
	u, err := url.Parse(serverURL)
	if err != nil {
		return "", errors.New("the PostgreSQL URL is malformed") // the cause would repeat the password
	}
	if login != nil {
		u.User = login
	}
	u.Path = "/" + database
	return u.String(), nil
}
