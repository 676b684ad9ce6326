//go:build unix

package stack

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
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/migrate"
)

// The logins that a database has by default: of applications, of gateways for fences and for SQL over HTTP.
const (
	Writer  = "writer"
	Gateway = "gateway"
	SQL     = "gateway_sql"
)

// Login is a role that may log in.
type Login struct {
	Name     string
	Password string   // default: a random one
	Roles    []string // that it is granted
}

// Database is a database with the fence, and the logins that use it.
type Database struct {
	Name   string  // default: fencegate
	Owner  string  // one of Logins; default: the superuser
	Logins []Login // default: Writer, Gateway and SQL

	// Migrate applies the migrations; address is the superuser's. Default: this program's own. [NotMigrated] leaves the
	// database without a fence.
	Migrate func(ctx context.Context, address string) error
	// Then are statements of the superuser, in one session.
	Then []string
}

// NotMigrated is a Database.Migrate that does nothing.
func NotMigrated(context.Context, string) error { return nil }

func (d Database) withDefaults() Database {
	if d.Name == "" {
		d.Name = "fencegate"
	}
	if d.Logins == nil {
		d.Logins = []Login{{Name: Writer, Roles: []string{"fence_writer"}}, {Name: Gateway, Roles: []string{"fence_gateway"}}, {Name: SQL, Roles: []string{"fence_writer"}}}
	}
	if d.Migrate == nil {
		d.Migrate = func(ctx context.Context, address string) error { return migrate.Up(ctx, address, migrate.All) }
	}
	d.Logins = slices.Clone(d.Logins) // they are the caller's
	for i := range d.Logins {
		if d.Logins[i].Password == "" {
			d.Logins[i].Password = rand.Text()
		}
	}
	return d
}

// address is the address of the database for a login; "" is the superuser.
func (d Database) address(serverURL, login string) (string, error) {
	u, err := url.Parse(serverURL)
	if err != nil {
		return "", errors.New("the PostgreSQL URL is malformed") // the cause contains the password
	}
	u.Path = "/" + d.Name
	if login == "" {
		return u.String(), nil
	}
	for _, l := range d.Logins {
		if l.Name == login {
			u.User = url.UserPassword(l.Name, l.Password)
			return u.String(), nil
		}
	}
	return "", fmt.Errorf("the database %s has no login %q", d.Name, login)
}

// Create creates the database and its logins on a server, whose superuser's address is given, as [Stack.Postgres] does.
func (d Database) Create(ctx context.Context, serverURL string) error {
	return d.withDefaults().create(ctx, serverURL)
}

// create creates the database and its logins if they are missing, sets their passwords, and migrates. It may be
// repeated.
func (d Database) create(ctx context.Context, serverURL string) error {
	server, err := pgx.Connect(ctx, serverURL)
	if err != nil {
		return err
	}
	defer func() { _ = server.Close(context.WithoutCancel(ctx)) }()
	for _, l := range d.Logins {
		if err := l.ensure(ctx, server); err != nil {
			return err
		}
	}
	sql := "CREATE DATABASE " + quoted(d.Name)
	if d.Owner != "" {
		sql += " OWNER " + quoted(d.Owner)
	}
	if _, err := server.Exec(ctx, sql); err != nil && !alreadyThere(err) {
		return fmt.Errorf("create the database %s: %w", d.Name, err)
	}
	admin, err := d.address(serverURL, "")
	if err != nil {
		return err
	}
	if err := d.Migrate(ctx, admin); err != nil {
		return err
	}
	for _, l := range d.Logins { // after the migrations, which create the roles
		for _, role := range l.Roles {
			if _, err := server.Exec(ctx, "GRANT "+quoted(role)+" TO "+quoted(l.Name)); err != nil {
				return fmt.Errorf("grant %s to %s: %w", role, l.Name, err)
			}
		}
	}
	return run(ctx, admin, d.Then...)
}

// drop removes what create created, except the roles fence_*, which other databases may use.
func (d Database) drop(ctx context.Context, serverURL string) error {
	server, err := pgx.Connect(ctx, serverURL)
	if err != nil {
		return err
	}
	defer func() { _ = server.Close(context.WithoutCancel(ctx)) }()
	_, err = server.Exec(ctx, "DROP DATABASE IF EXISTS "+quoted(d.Name)+" WITH (FORCE)")
	for _, l := range d.Logins {
		_, dropErr := server.Exec(ctx, "DROP ROLE IF EXISTS "+quoted(l.Name))
		err = errors.Join(err, dropErr)
	}
	return err
}

// run runs statements in one session. The error holds the statement.
func run(ctx context.Context, address string, statements ...string) error {
	if len(statements) == 0 {
		return nil
	}
	conn, err := pgx.Connect(ctx, address)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	for _, sql := range statements {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%.200s: %w", sql, err)
		}
	}
	return nil
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

// ensure sends the password as a SCRAM verifier, so that no server log contains it.
func (l Login) ensure(ctx context.Context, conn *pgx.Conn) error {
	verifier, err := scramVerifier(l.Password)
	if err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, "CREATE ROLE "+quoted(l.Name)+" LOGIN"); err != nil && !alreadyThere(err) {
		return fmt.Errorf("create the login %s: %w", l.Name, err)
	}
	if _, err := conn.Exec(ctx, "ALTER ROLE "+quoted(l.Name)+" PASSWORD '"+verifier+"'"); err != nil {
		return fmt.Errorf("set the password of the login %s: %w", l.Name, err)
	}
	return nil
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
