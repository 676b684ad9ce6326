package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/pgserver"
	"github.com/fencegate/fencegate/migrate"
)

// shared is the resource whose grant all clients present, for the tables with a constant resource. Each client also has
// its own grant, below own.
const (
	shared = "bench/shared"
	own    = "clients/"
)

// world is a migrated server for the benchmark, with a login that writes and one that arms.
type world struct {
	server  *pgserver.Server
	admin   *pgx.Conn
	writer  *url.URL
	gateway *url.URL
	grant   fence.Grant   // of shared
	grants  []fence.Grant // one per client
}

func start(ctx context.Context, below string, clients int) (w *world, err error) {
	dir, err := os.MkdirTemp(below, "bench-fence-")
	if err != nil {
		return nil, err
	}
	if err = os.Chmod(dir, 0o711); err != nil { // as root, PostgreSQL runs as another user
		return nil, err
	}
	w = &world{}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close())
		}
	}()
	w.server, err = pgserver.Start(ctx, pgserver.Config{Dir: dir, Ephemeral: true, Settings: map[string]string{
		"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on",
		"max_connections": strconv.Itoa(4*clients + 32), "shared_buffers": "512MB",
		// Without events that would hit one contender by chance.
		"autovacuum": "off", "checkpoint_timeout": "1h", "max_wal_size": "16GB", "jit": "off",
	}})
	if err != nil {
		return w, errors.Join(err, os.RemoveAll(dir))
	}
	if err = migrate.Up(ctx, w.server.URL("postgres"), migrate.All); err != nil {
		return w, err
	}
	if w.admin, err = pgx.Connect(ctx, w.server.URL("postgres")); err != nil {
		return w, err
	}
	if w.writer, err = w.login(ctx, "bench_writer", "fence_writer"); err != nil {
		return w, err
	}
	if w.gateway, err = w.login(ctx, "bench_gateway", "fence_gateway"); err != nil {
		return w, err
	}
	if err = w.exec(ctx, sqlPeers); err != nil {
		return w, err
	}
	return w, w.arm(ctx, clients)
}

// beside creates another world in a database of the same server, which up migrates.
func (w *world) beside(ctx context.Context, database string, clients int, up func(address string) error) (*world, error) {
	if err := w.exec(ctx, "CREATE DATABASE "+database); err != nil {
		return nil, err
	}
	if err := up(w.server.URL(database)); err != nil {
		return nil, err
	}
	other := &world{}
	for login, address := range map[**url.URL]*url.URL{&other.writer: w.writer, &other.gateway: w.gateway} {
		u := *address
		u.Path = "/" + database
		*login = &u
	}
	var err error
	if other.admin, err = pgx.Connect(ctx, w.server.URL(database)); err != nil {
		return nil, err
	}
	if err := other.exec(ctx, sqlPeers); err != nil {
		return other, err
	}
	return other, other.arm(ctx, clients)
}

// sqlPeers are the tables of the hand-written patterns: one row for each resource.
const sqlPeers = `
	CREATE TABLE hand (resource text PRIMARY KEY, last_fencing_token bigint NOT NULL) WITH (fillfactor = 50);
	CREATE TABLE plain (resource text PRIMARY KEY, token bigint NOT NULL, seal bytea, holder text NOT NULL, armed_at timestamptz NOT NULL)
	  WITH (fillfactor = 50);
	GRANT ALL ON hand TO bench_writer; GRANT ALL ON plain TO bench_gateway`

func (w *world) login(ctx context.Context, name, member string) (*url.URL, error) {
	u, err := url.Parse(w.server.URL("postgres"))
	if err != nil {
		return nil, err
	}
	password := rand.Text()
	u.User = url.UserPassword(name, password)
	return u, w.exec(ctx, fmt.Sprintf("CREATE ROLE %s LOGIN PASSWORD '%s'; GRANT %s TO %s", name, password, member, name))
}

// arm arms the grants.
func (w *world) arm(ctx context.Context, clients int) error {
	pool, err := pgxpool.New(ctx, w.gateway.String())
	if err != nil {
		return err
	}
	defer pool.Close()
	f := pgfence.New(pool)
	for i := range clients + 1 {
		g := fence.Grant{Resource: own + strconv.Itoa(i), Token: 1, Seal: fence.NewSeal()}
		if i == clients {
			g.Resource = shared
			w.grant = g
		} else {
			w.grants = append(w.grants, g)
		}
		if _, err := w.admin.Exec(ctx, `INSERT INTO hand VALUES ($1, 1)`, g.Resource); err != nil {
			return err
		}
		if err := f.Arm(ctx, fence.Arming{Resource: g.Resource, Token: g.Token, SealHash: g.Seal.Hash(), Holder: "bench"}); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) close() error {
	var err error
	if w.admin != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		err = w.admin.Close(ctx)
	}
	if w.server != nil {
		err = errors.Join(err, w.server.Kill()) // no data is kept
	}
	return err
}

func (w *world) exec(ctx context.Context, sql string) error {
	if _, err := w.admin.Exec(ctx, sql); err != nil {
		return fmt.Errorf("%s: %w", strings.TrimSpace(strings.SplitN(sql, "PASSWORD", 2)[0]), err)
	}
	return nil
}

// setCommit sets how long the commits of new sessions take.
func (w *world) setCommit(ctx context.Context, commit string, delay time.Duration) error {
	us := int64(0)
	switch commit {
	case "slow":
		us = delay.Microseconds()
	case "fast":
	default:
		return fmt.Errorf("there are no %q commits", commit)
	}
	for _, login := range []string{"bench_writer", "bench_gateway"} {
		if err := w.exec(ctx, fmt.Sprintf("ALTER ROLE %s SET commit_delay = %d; ALTER ROLE %s SET commit_siblings = 0", login, us, login)); err != nil {
			return err
		}
	}
	return nil
}

// table creates a contender's table, and protects it with these arguments of fence.protect.
func (w *world) table(ctx context.Context, name, protection string) error {
	sql := fmt.Sprintf(`DROP TABLE IF EXISTS %[1]s; CREATE TABLE %[1]s (id bigserial PRIMARY KEY, client int NOT NULL, note text);
		GRANT ALL ON %[1]s TO bench_writer; GRANT ALL ON SEQUENCE %[1]s_id_seq TO bench_writer`, name)
	if err := w.exec(ctx, sql); err != nil || protection == "" {
		return err
	}
	return w.exec(ctx, fmt.Sprintf("SELECT fence.protect('%s', %s)", name, protection))
}

// client is one client, with sessions of which it uses one at a time.
type client struct {
	id      int
	plain   *pgx.Conn // presents no grant
	shared  *pgx.Conn // presents the shared grant in its connection's settings
	own     *pgx.Conn // presents its own grant in its connection's settings
	gateway *pgx.Conn // as who arms; nil until it is needed
	grant   fence.Grant
}

func (c *client) sessions() []*pgx.Conn {
	return slices.DeleteFunc([]*pgx.Conn{c.plain, c.shared, c.own, c.gateway}, func(conn *pgx.Conn) bool { return conn == nil })
}

// clients connects n clients; end disconnects them.
func (w *world) clients(ctx context.Context, n int) (all []*client, end func(), err error) {
	end = func() {
		for _, c := range all {
			for _, conn := range c.sessions() {
				_ = conn.Close(ctx)
			}
		}
	}
	for i := range n {
		c := &client{id: i, grant: w.grants[i]}
		all = append(all, c)
		for conn, g := range map[**pgx.Conn]*fence.Grant{&c.plain: nil, &c.shared: &w.grant, &c.own: &c.grant} {
			if *conn, err = w.connect(ctx, g); err != nil {
				end()
				return nil, nil, err
			}
		}
	}
	return all, end, nil
}

func (w *world) connect(ctx context.Context, g *fence.Grant) (*pgx.Conn, error) {
	config, err := pgx.ParseConfig(w.writer.String())
	if err != nil {
		return nil, err
	}
	if g != nil {
		config.RuntimeParams["fence.resource"] = fence.EscapeResource(g.Resource)
		config.RuntimeParams["fence.token"] = g.Presented()
	}
	return pgx.ConnectConfig(ctx, config)
}
