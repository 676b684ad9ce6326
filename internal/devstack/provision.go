package devstack

import (
	"context"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/internal/leases"
	"github.com/fencegate/fencegate/migrate"
)

// names are what provision creates in a server: the database, a login that owns it, and two logins for the gateway,
// whose passwords are new at each start.
type names struct{ database, people, password, gateway, sql string }

// privateNames is for our own server, which listens on loopback only.
func privateNames() names {
	return names{database: "dev", people: "dev", password: "dev", gateway: "fencegate_dev_gateway", sql: "fencegate_dev_sql"}
}

// foreignNames is for another server. The names identify fencegate, and the password is random. An ephemeral stack has
// names of its own: what it drops at its end is nobody else's.
func foreignNames(ephemeral bool) names {
	own := "fencegate_dev"
	if ephemeral {
		own += "_" + strings.ToLower(rand.Text()[:12])
	}
	return names{database: own, people: own, password: rand.Text(), gateway: own + "_gateway", sql: own + "_sql"}
}

// urls are the addresses of the development database, one for each login.
type urls struct{ admin, gateway, sql, people string }

// provision creates the database and its logins if they are missing, migrates, and sets the lease source, since the
// stack has the only gateway. It may be repeated.
func provision(ctx context.Context, serverURL string, n names, source string) (urls, error) {
	server, err := pgx.Connect(ctx, serverURL)
	if err != nil {
		return urls{}, err
	}
	defer func() { _ = server.Close(context.WithoutCancel(ctx)) }()
	if err := refuseSecond(ctx, server, n); err != nil {
		return urls{}, err
	}
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

const othersEnd = 5 * time.Second // until the sessions of a stack that has just ended are gone

// refuseSecond refuses a database in which the gateway of another stack is at work: the new passwords would lock it out.
func refuseSecond(ctx context.Context, server *pgx.Conn, n names) error {
	const sqlSession = "SELECT pid FROM pg_stat_activity WHERE usename = $1 ORDER BY backend_start LIMIT 1"
	for began := time.Now(); ; {
		var pid int
		err := server.QueryRow(ctx, sqlSession, n.gateway).Scan(&pid)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			return nil
		case err != nil:
			return err
		case time.Since(began) > othersEnd:
			return fmt.Errorf("another dev works with it (the login %s has a session, pid %d): end it, or use --ephemeral", n.gateway, pid)
		}
		leases.Pause(ctx, 100*time.Millisecond) // the next query fails if ctx has ended
	}
}

// letSQLWrite grants the login of SQL over HTTP its rights on the tables of the database's owner.
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

// unprovision removes what provision created, except the roles fence_*, which other databases may use.
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

// ensureLogin sends the password as a SCRAM verifier, so that no server log contains it.
func ensureLogin(ctx context.Context, conn *pgx.Conn, name, password string) error {
	verifier, err := scramVerifier(password)
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

// withDatabase returns serverURL with another database, and with another login unless that is nil.
func withDatabase(serverURL, database string, login *url.Userinfo) (string, error) {
	u, err := url.Parse(serverURL)
	if err != nil {
		return "", errors.New("the PostgreSQL URL is malformed") // the cause contains the password
	}
	if login != nil {
		u.User = login
	}
	u.Path = "/" + database
	return u.String(), nil
}

// scramVerifier returns what PostgreSQL stores for a password (RFC 5803): SCRAM-SHA-256$<iterations>:<salt>$<stored
// key>:<server key>.
func scramVerifier(password string) (string, error) {
	const iterations = 4096 // PostgreSQL's default
	salt := make([]byte, 16)
	_, _ = rand.Read(salt)
	salted, err := pbkdf2.Key(sha256.New, password, salt, iterations, sha256.Size)
	if err != nil {
		return "", err
	}
	stored := sha256.Sum256(mac(salted, "Client Key"))
	b64 := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("SCRAM-SHA-256$%d:%s$%s:%s", iterations, b64(salt), b64(stored[:]), b64(mac(salted, "Server Key"))), nil
}

func mac(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return h.Sum(nil)
}
