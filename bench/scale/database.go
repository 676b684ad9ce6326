package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/internal/pgserver"
	"github.com/fencegate/fencegate/migrate"
)

// database is a PostgreSQL server for the benchmark with one fence.
type database struct {
	server  *pgserver.Server
	admin   *pgx.Conn
	gateway string // URL of a login that arms
}

func startDatabase(ctx context.Context) (d *database, err error) {
	d = &database{}
	dir, err := os.MkdirTemp("", "bench-scale-")
	if err != nil {
		return d, err
	}
	if err = os.Chmod(dir, 0o711); err != nil { // as root, PostgreSQL runs as another user
		return d, err
	}
	d.server, err = pgserver.Start(ctx, pgserver.Config{Dir: dir, Ephemeral: true, Settings: map[string]string{
		"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "shared_buffers": "512MB",
		"checkpoint_timeout": "1h", "max_wal_size": "16GB", "jit": "off",
	}})
	if err != nil {
		return d, errors.Join(err, os.RemoveAll(dir))
	}
	if err = migrate.Up(ctx, d.server.URL("postgres"), migrate.All); err != nil {
		return d, err
	}
	if d.admin, err = pgx.Connect(ctx, d.server.URL("postgres")); err != nil {
		return d, err
	}
	u, err := url.Parse(d.server.URL("postgres"))
	if err != nil {
		return d, err
	}
	password := rand.Text()
	u.User = url.UserPassword("bench_gateway", password)
	d.gateway = u.String()
	_, err = d.admin.Exec(ctx, "CREATE ROLE bench_gateway LOGIN PASSWORD '"+password+"' IN ROLE fence_gateway")
	return d, err
}

func (d *database) close() error {
	var err error
	if d.admin != nil {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		err = d.admin.Close(ctx)
	}
	if d.server != nil {
		err = errors.Join(err, d.server.Kill()) // no data is kept
	}
	return err
}

func resource(n int) string { return fmt.Sprintf("orders/%09d", n) }

// record arms n resources to token 1.
func (d *database) record(ctx context.Context, n int) error {
	for _, sql := range []string{
		`INSERT INTO fence.arms SELECT 'orders/' || lpad(n::text, 9, '0') FROM generate_series(0, $1 - 1) n`,
		`INSERT INTO fence.resources (resource, token, seal, holder, armed_at)
		 SELECT 'orders/' || lpad(n::text, 9, '0'), 1, sha256(n::text::bytea), 'bench', now() FROM generate_series(0, $1 - 1) n`,
	} {
		if _, err := d.admin.Exec(ctx, sql, n); err != nil {
			return err
		}
	}
	for _, sql := range []string{`VACUUM ANALYZE fence.arms, fence.resources`, `CHECKPOINT`} {
		if _, err := d.admin.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// clear deletes all fences. Only a benchmark may do that.
func (d *database) clear(ctx context.Context) error {
	_, err := d.admin.Exec(ctx, `TRUNCATE fence.arms, fence.resources`)
	return err
}

func (d *database) written(ctx context.Context) (bytes int64, err error) {
	err = d.admin.QueryRow(ctx, `SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint`).Scan(&bytes)
	return bytes, err
}

func (d *database) size(ctx context.Context) (bytes int64, err error) {
	err = d.admin.QueryRow(ctx, `SELECT pg_total_relation_size('fence.arms') + pg_total_relation_size('fence.resources')`).Scan(&bytes)
	return bytes, err
}
