package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/etcdserver"
	"github.com/fencegate/fencegate/internal/pgserver"
	"github.com/fencegate/fencegate/internal/zkserver"
	"github.com/fencegate/fencegate/migrate"
)

// members is the size of each group of servers.
const members = 3

// services are the lease services besides Redis, and the fenced PostgreSQL.
type services struct {
	pg      *pgserver.Server
	gateway string // address
	etcd    *etcdserver.Cluster
	zk      *zkserver.Ensemble
}

func startServices(ctx context.Context) (s *services, err error) {
	s = &services{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if err = s.startPostgres(ctx); err != nil {
		return s, err
	}
	if s.etcd, err = etcdserver.Start(ctx, members, ""); err != nil {
		return s, err
	}
	s.zk, err = zkserver.Start(ctx, members)
	return s, err
}

func (s *services) startPostgres(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "bench-lock-")
	if err != nil {
		return err
	}
	if err = os.Chmod(dir, 0o711); err != nil { // as root, PostgreSQL runs as another user
		return err
	}
	s.pg, err = pgserver.Start(ctx, pgserver.Config{Dir: dir, Ephemeral: true, Settings: map[string]string{
		"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "max_connections": "300", "shared_buffers": "256MB",
		"checkpoint_timeout": "1h", "max_wal_size": "16GB", "jit": "off",
	}})
	if err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	if err := migrate.Up(ctx, s.pg.URL("postgres"), migrate.All); err != nil {
		return err
	}
	admin, err := pgx.Connect(ctx, s.pg.URL("postgres"))
	if err != nil {
		return err
	}
	password := rand.Text()
	_, err = admin.Exec(ctx, fmt.Sprintf(`CREATE ROLE bench_gateway LOGIN PASSWORD '%s' IN ROLE fence_gateway; CREATE TABLE jobs (name text PRIMARY KEY);
		GRANT ALL ON jobs TO bench_gateway`, password))
	u, bad := url.Parse(s.pg.URL("postgres"))
	if bad == nil {
		u.User = url.UserPassword("bench_gateway", password)
		s.gateway = u.String()
	}
	return errors.Join(err, bad, admin.Close(ctx))
}

// pool is the pool of one process.
func (s *services) pool(ctx context.Context, conns int32) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(s.gateway)
	if err != nil {
		return nil, err
	}
	config.MaxConns = conns
	pgfence.Configure(config)
	return pgxpool.NewWithConfig(ctx, config)
}

func (s *services) close() (err error) {
	if s.zk != nil {
		err = s.zk.Close()
	}
	if s.etcd != nil {
		err = errors.Join(err, s.etcd.Close())
	}
	if s.pg != nil {
		err = errors.Join(err, s.pg.Kill()) // no data is kept
	}
	return err
}
