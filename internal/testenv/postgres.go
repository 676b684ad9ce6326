//go:build unix

package testenv

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/migrate"
)

// PG is a database of one test.
type PG struct {
	URL        string // the superuser's; postgres://…
	GatewayURL string // a login in fence_gateway; empty without migrations
	WriterURL  string // a login in fence_writer; empty without migrations
	OtherURL   string // a login without any role
	Database   string
}

// Postgres returns a fresh database with the migrations applied. It is dropped when the test ends.
func Postgres(t testing.TB) PG {
	t.Helper()
	return fresh(t, true, "")
}

// PostgresEmpty returns a fresh database without migrations. Roles belong to the whole cluster, so those of the
// migrations may exist.
func PostgresEmpty(t testing.TB) PG {
	t.Helper()
	return fresh(t, false, "")
}

// PostgresIn returns a fresh database of an encoding, with the migrations applied and without logins in their roles.
func PostgresIn(t testing.TB, encoding string) PG {
	t.Helper()
	pg := fresh(t, false, fmt.Sprintf(" LOCALE 'C' ENCODING '%s'", encoding))
	if err := migrate.Up(t.Context(), pg.URL, migrate.All); err != nil {
		fatal(t, fmt.Errorf("database of %s: %w", encoding, err))
	}
	return pg
}

// Pool connects to the database as the superuser; it is closed when the test ends.
func (pg PG) Pool(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return PoolOf(t, pg.URL)
}

// PoolOf connects to any address; the pool is closed when the test ends.
func PoolOf(t testing.TB, address string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), address)
	if err != nil {
		fatal(t, fmt.Errorf("pool: %w", err))
	}
	t.Cleanup(pool.Close)
	return pool
}

// As creates a login with the roles, and returns its URL for the database. The login is dropped with the test.
func (pg PG) As(t testing.TB, roles ...string) string {
	t.Helper()
	c, err := shared()
	if err != nil {
		fatal(t, err)
	}
	login, password := "fencegate_test_"+unique(), rand.Text()
	sql := fmt.Sprintf("CREATE ROLE %s LOGIN PASSWORD '%s'", login, password)
	if len(roles) > 0 {
		sql += " IN ROLE " + quoted(roles...)
	}
	if err := c.exec(t.Context(), pg.Database, sql); err != nil {
		fatal(t, fmt.Errorf("login with %v: %w", roles, err))
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		drop := fmt.Sprintf("DROP OWNED BY %s CASCADE; DROP ROLE %s", login, login)
		if err := c.exec(ctx, pg.Database, drop); err != nil {
			t.Logf("testenv: login %s stays: %v", login, err)
		}
	})
	return c.url(pg.Database, login, password)
}

func fresh(t testing.TB, migrated bool, options string) PG {
	t.Helper()
	c, err := shared()
	if err != nil {
		fatal(t, err)
	}
	template := "template0"
	if migrated {
		if template, err = c.template(); err != nil {
			fatal(t, err)
		}
	}
	name := "fencegate_test_" + unique()
	if err := c.exec(t.Context(), "postgres", fmt.Sprintf("CREATE DATABASE %s TEMPLATE %s%s%s", name, template, c.strategy, options)); err != nil {
		fatal(t, fmt.Errorf("fresh database: %w", err))
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		if err := c.dropDatabase(ctx, name); err != nil {
			t.Logf("testenv: database %s stays: %v", name, err)
		}
	})
	pg := PG{URL: c.url(name, "", ""), OtherURL: c.url(name, loginOther, c.logins), Database: name}
	if migrated {
		// The template's id is shared by other databases.
		if err := c.exec(t.Context(), name, "UPDATE fence.lock_group SET id = gen_random_uuid()"); err != nil {
			fatal(t, fmt.Errorf("fresh database: %w", err))
		}
		pg.GatewayURL, pg.WriterURL = c.url(name, loginGateway, c.logins), c.url(name, loginWriter, c.logins)
	}
	return pg
}

// The logins that every test may use. Each cluster has one password for them.
const (
	loginGateway = "fencegate_test_gateway"
	loginWriter  = "fencegate_test_writer"
	loginOther   = "fencegate_test_other"
)

// cluster is the PostgreSQL server that the tests of this binary share.
type cluster struct {
	base     *url.URL // the superuser's address
	logins   string   // password of the shared logins
	strategy string   // the fastest way to copy a database
	template func() (string, error)
}

// shared starts or finds the cluster once.
var shared = sync.OnceValues(func() (*cluster, error) {
	ctx, cancel := context.WithTimeout(context.Background(), startPatience)
	defer cancel()
	c, err := openPostgres(ctx)
	if err != nil {
		return nil, err
	}
	c.template = sync.OnceValues(c.makeTemplate)
	return c, c.makeLogins(ctx)
})

func (c *cluster) url(database, login, password string) string {
	u := *c.base
	u.Path = "/" + database
	if login != "" {
		u.User = url.UserPassword(login, password)
	}
	return u.String()
}

// exec runs statements as the superuser on their own connection.
func (c *cluster) exec(ctx context.Context, database, sql string) error {
	conn, err := pgx.Connect(ctx, c.url(database, "", ""))
	if err != nil {
		return err
	}
	_, err = conn.PgConn().Exec(ctx, sql).ReadAll()
	return errors.Join(err, conn.Close(context.WithoutCancel(ctx)))
}

// dropDatabase also ends what blocks the drop: prepared transactions, and, by FORCE, sessions.
func (c *cluster) dropDatabase(ctx context.Context, name string) error {
	drop := fmt.Sprintf("DROP DATABASE IF EXISTS %s WITH (FORCE)", name)
	err := c.exec(ctx, "postgres", drop)
	if err == nil {
		return nil
	}
	return errors.Join(c.rollbackPrepared(ctx, name), c.exec(ctx, "postgres", drop))
}

func (c *cluster) rollbackPrepared(ctx context.Context, name string) error {
	conn, err := pgx.Connect(ctx, c.url(name, "", ""))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	rows, err := conn.Query(ctx, "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")
	if err != nil {
		return err
	}
	gids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, gid := range gids {
		text := strings.ReplaceAll(gid, "'", "''")
		if _, err := conn.Exec(ctx, "ROLLBACK PREPARED '"+text+"'"); err != nil {
			return err
		}
	}
	return nil
}

func unique() string { return strings.ToLower(rand.Text()[:16]) }

func quoted(names ...string) string {
	list := make([]string, len(names))
	for i, n := range names {
		list[i] = pgx.Identifier{n}.Sanitize()
	}
	return strings.Join(list, ", ")
}

// Renote returns the SQL that changes the comment which says what is applied of the fence, by an expression of that note.
func Renote(expression string) string {
	return `DO $$ BEGIN EXECUTE (SELECT format('COMMENT ON SCHEMA fence IS %L', ` + expression + `)
 FROM obj_description('fence'::regnamespace, 'pg_namespace') note); END $$`
}
