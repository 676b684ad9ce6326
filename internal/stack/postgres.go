//go:build unix

package stack

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/pgserver"
)

// PostgresConfig configures a server with one guarded database. The zero value is fine.
type PostgresConfig struct {
	Database Database

	Name     string            // of the server's folder; default: postgresql
	BinDir   string            // default: the machine's
	Durable  bool              // commits reach the disk, for measurements; default: durability is given up for speed
	Settings map[string]string // of postgresql.conf
	HBA      string            // lines of pg_hba.conf before the one that wants a password of everybody
}

// measured are the settings of a Durable server: no event that would hit one contender by chance.
var measured = map[string]string{
	"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "shared_buffers": "512MB",
	"autovacuum": "off", "checkpoint_timeout": "1h", "max_wal_size": "16GB", "jit": "off",
}

// Postgres is a server with one guarded database, or its standby.
type Postgres struct {
	*pgserver.Server

	Database Database
	Dir      string // the cluster's folder

	stack *Stack
}

// Postgres starts a server and creates its database.
func (s *Stack) Postgres(ctx context.Context, cfg PostgresConfig) (*Postgres, error) {
	if cfg.Name == "" {
		cfg.Name = "postgresql"
	}
	settings := map[string]string{}
	if cfg.Durable {
		maps.Copy(settings, measured)
	}
	maps.Copy(settings, cfg.Settings)
	if cfg.HBA != "" {
		file := filepath.Join(s.Dir, cfg.Name+"_hba.conf")
		lines := strings.TrimSpace(cfg.HBA) + "\nhost all all 127.0.0.1/32 scram-sha-256\n"
		if err := os.WriteFile(file, []byte(lines), 0o644); err != nil { //nolint:gosec // the server's user reads it
			return nil, err
		}
		settings["hba_file"] = file
	}
	p, err := s.start(ctx, pgserver.Config{Dir: filepath.Join(s.Dir, cfg.Name), BinDir: cfg.BinDir, Ephemeral: true, Fast: !cfg.Durable, Settings: settings})
	if err != nil {
		return nil, err
	}
	p.Database = cfg.Database.withDefaults()
	return p, p.Database.create(ctx, p.URL("postgres"))
}

func (s *Stack) start(ctx context.Context, cfg pgserver.Config) (*Postgres, error) {
	server, err := pgserver.Start(ctx, cfg)
	if err != nil {
		return nil, err
	}
	s.AtClose(server.Kill) // no data is kept
	return &Postgres{Server: server, Dir: cfg.Dir, stack: s}, nil
}

// As is the database's address for one of its logins. It holds the password.
func (p *Postgres) As(login string) string {
	address, err := p.Database.address(p.URL("postgres"), login)
	if err != nil {
		panic(err) // a wrong name in the caller
	}
	return address
}

// Password is a login's password.
func (p *Postgres) Password(login string) string {
	u, err := url.Parse(p.As(login))
	if err != nil {
		panic(err) // it was made by As
	}
	password, _ := u.User.Password()
	return password
}

// Admin is the database's address for the superuser. It holds the password.
func (p *Postgres) Admin() string { return p.URL(p.Database.Name) }

// Exec runs statements as the superuser, in one session.
func (p *Postgres) Exec(ctx context.Context, statements ...string) error {
	return run(ctx, p.Admin(), statements...)
}

// Pool returns a pool of the superuser's, which Close closes.
func (p *Postgres) Pool(ctx context.Context) (*pgxpool.Pool, error) {
	pool, err := pgxpool.New(ctx, p.Admin())
	if err != nil {
		return nil, err
	}
	p.stack.AtClose(func() error { pool.Close(); return nil })
	return pool, nil
}

// Arm raises the fence of a resource, as acquiring a lease does, and returns the grant.
func (p *Postgres) Arm(ctx context.Context, resource string, token fence.Token) (fence.Grant, error) {
	config, err := pgxpool.ParseConfig(p.Admin())
	if err != nil {
		return fence.Grant{}, err
	}
	pgfence.Configure(config)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return fence.Grant{}, err
	}
	defer pool.Close()
	g := fence.Grant{Resource: resource, Token: token, Seal: fence.NewSeal()}
	return g, pgfence.New(pool).Arm(ctx, fence.Arming{Resource: resource, Token: token, SealHash: g.Seal.Hash(), Holder: "stack"})
}

// Owner is the user that PostgreSQL runs as; nil: this process's. Other servers that refuse root run as it, too.
func (p *Postgres) Owner() *syscall.Credential {
	info, err := os.Stat(filepath.Join(p.Dir, "data"))
	if err != nil || os.Geteuid() != 0 {
		return nil
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	return &syscall.Credential{Uid: st.Uid, Gid: st.Gid}
}

// Give makes the server's user the owner of a file or folder.
func (p *Postgres) Give(path string) error {
	if owner := p.Owner(); owner != nil {
		return os.Chown(path, int(owner.Uid), int(owner.Gid))
	}
	return nil
}

var primaryPort = regexp.MustCompile(`port=\d+`)

// Redirect points the configuration of a standby in a folder to its primary behind another address, such as a relay.
func Redirect(dir, primary string) error {
	file := filepath.Join(dir, "data", "postgresql.auto.conf")
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if !primaryPort.Match(text) {
		return fmt.Errorf("%s: no primary_conninfo", file)
	}
	_, port, _ := strings.Cut(primary, ":")
	return os.WriteFile(file, primaryPort.ReplaceAll(text, []byte("port="+port)), 0o600) //nolint:gosec // below the stack's own folder
}

// Standby starts a standby that streams from the server, for which its commits wait if synchronous is set. name is also
// its application_name.
func (p *Postgres) Standby(ctx context.Context, name string, synchronous bool) (*Postgres, error) {
	ctx, cancel := context.WithTimeout(ctx, standbyTimeout)
	defer cancel()
	dir := filepath.Join(p.stack.Dir, name)
	if err := p.CopyTo(ctx, dir, true); err != nil {
		return nil, err
	}
	standby, err := p.stack.start(ctx, pgserver.Config{Dir: dir, Ephemeral: true, Fast: true, Settings: map[string]string{"cluster_name": name}})
	if err != nil {
		return nil, err
	}
	standby.Database = p.Database
	if !synchronous {
		return standby, nil
	}
	return standby, WaitForStandby(ctx, p.Admin(), name)
}

// standbyTimeout is for copying a server, and for a standby to catch up.
const standbyTimeout = time.Minute

const standbyState = `SELECT coalesce(min(sync_state), 'gone') FROM pg_stat_replication WHERE application_name = $1`

// WaitForStandby makes commits wait for a standby, and returns when they do; with "" they wait for none. address is the
// superuser's.
func WaitForStandby(ctx context.Context, address, name string) error {
	ctx, cancel := context.WithTimeout(ctx, standbyTimeout)
	defer cancel()
	names := ""
	if name != "" {
		names = quoted(name)
	}
	if err := run(ctx, address, "ALTER SYSTEM SET synchronous_standby_names = '"+names+"'", "SELECT pg_reload_conf()"); err != nil || name == "" {
		return err
	}
	conn, err := pgx.Connect(ctx, address)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return Until(ctx, "commits wait for the standby", func(ctx context.Context) error {
		var state string
		err := conn.QueryRow(ctx, standbyState, name).Scan(&state)
		if err == nil && state != "sync" {
			err = errors.New(state)
		}
		return err
	})
}

// Until polls until look succeeds, at most until ctx ends.
func Until(ctx context.Context, what string, look func(context.Context) error) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := look(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not in time: %s: %w", what, errors.Join(ctx.Err(), err))
		case <-tick.C:
		}
	}
}
