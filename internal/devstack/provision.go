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

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/internal/migrate"
)

// Logins of the development database. Dev is for people; its password is its
// name, because the server listens on loopback only. The two others get a random
// password at each start, which no file holds.
const (
	DevLogin     = "dev"
	devPassword  = "dev"
	gatewayLogin = "fencegate_dev_gateway"
	sqlLogin     = "fencegate_dev_sql"
)

// Database is the name of the development database.
const Database = "dev"

// urls are the addresses of the development database, one for each login.
type urls struct{ admin, gateway, sql, dev string }

// provision makes the database and its logins where they are missing, and
// migrates. It may be repeated.
func provision(ctx context.Context, serverURL string) (urls, error) {
	server, err := pgx.Connect(ctx, serverURL)
	if err != nil {
		return urls{}, err
	}
	defer func() { _ = server.Close(context.WithoutCancel(ctx)) }()
	if err := ensureLogin(ctx, server, DevLogin, devPassword); err != nil {
		return urls{}, err
	}
	if err := ensureDatabase(ctx, server); err != nil {
		return urls{}, err
	}
	u := urls{}
	if u.admin, err = withDatabase(serverURL, nil); err != nil {
		return urls{}, err
	}
	if err := migrate.Up(ctx, u.admin); err != nil {
		return urls{}, err
	}
	for _, l := range []struct {
		login, group string
		url          *string
	}{{gatewayLogin, "fence_gateway", &u.gateway}, {sqlLogin, "fence_writer", &u.sql}} {
		password := rand.Text()
		if err := ensureLogin(ctx, server, l.login, password); err != nil {
			return urls{}, err
		}
		if err := grant(ctx, server, l.group, l.login); err != nil {
			return urls{}, err
		}
		if *l.url, err = withDatabase(serverURL, url.UserPassword(l.login, password)); err != nil {
			return urls{}, err
		}
	}
	if err := grant(ctx, server, "fence_writer", DevLogin); err != nil {
		return urls{}, err
	}
	u.dev, err = withDatabase(serverURL, url.UserPassword(DevLogin, devPassword))
	return u, err
}

// duplicate_object, duplicate_database
const (
	stateDuplicateObject   = "42710"
	stateDuplicateDatabase = "42P04"
)

func alreadyThere(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == stateDuplicateObject || pg.Code == stateDuplicateDatabase)
}

func ensureDatabase(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, "CREATE DATABASE "+Database+" OWNER "+DevLogin)
	if err != nil && !alreadyThere(err) {
		return fmt.Errorf("create the database %s: %w", Database, err)
	}
	return nil
}

// ensureLogin sends the password as a SCRAM verifier, so that no log of the
// server can hold it.
func ensureLogin(ctx context.Context, conn *pgx.Conn, name, password string) error {
	verifier, err := scramVerifier(password)
	if err != nil {
		return err
	}
	login := pgx.Identifier{name}.Sanitize()
	if _, err := conn.Exec(ctx, "CREATE ROLE "+login+" LOGIN"); err != nil && !alreadyThere(err) {
		return fmt.Errorf("create the login %s: %w", name, err)
	}
	if _, err := conn.Exec(ctx, "ALTER ROLE "+login+" PASSWORD '"+verifier+"'"); err != nil {
		return fmt.Errorf("set the password of the login %s: %w", name, err)
	}
	return nil
}

func grant(ctx context.Context, conn *pgx.Conn, group, login string) error {
	if _, err := conn.Exec(ctx, "GRANT "+pgx.Identifier{group}.Sanitize()+" TO "+pgx.Identifier{login}.Sanitize()); err != nil {
		return fmt.Errorf("grant %s to %s: %w", group, login, err)
	}
	return nil
}

// withDatabase is serverURL with the development database and another login.
func withDatabase(serverURL string, login *url.Userinfo) (string, error) {
	u, err := url.Parse(serverURL)
	if err != nil {
		return "", errors.New("the PostgreSQL URL is malformed") // the cause would repeat the password
	}
	if login != nil {
		u.User = login
	}
	u.Path = "/" + Database
	return u.String(), nil
}

// scramVerifier is what PostgreSQL stores for a password (RFC 5803):
// SCRAM-SHA-256$<iterations>:<salt>$<stored key>:<server key>.
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
