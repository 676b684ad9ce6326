package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/child"
)

// s3World is the product as processes on loopback, with the tables for a run's judge, and surfaces on it.
type s3World struct {
	t     *testing.T
	dir   string
	cfg   Config
	admin *pgxpool.Pool
}

const s3WorldLogins = `
CREATE ROLE client LOGIN IN ROLE fence_writer;
CREATE ROLE gateway LOGIN IN ROLE fence_gateway;
CREATE ROLE for_sql LOGIN IN ROLE fence_writer;
`

func newS3World(t *testing.T) *s3World {
	t.Helper()
	dir := t.TempDir()
	if err := child.RemoveAtDeath(dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { child.Removed(dir) })
	w := &s3World{t: t, dir: dir, cfg: Config{
		Number: 1, MaxTTL: 3 * time.Second, Bucket: "robust", Program: filepath.Join(dir, "fencegate"),
		Python: os.Getenv("ROBUSTNESS_PYTHON"),
	}}
	if w.cfg.Python == "" {
		w.cfg.Python = "python3"
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-o", w.cfg.Program, "./cmd/fencegate")
	build.Dir = filepath.Join("..", "..")
	w.done(build)
	server := w.postgres()
	w.cfg.WriterURL = "postgres://client@" + server + "/postgres?sslmode=disable"
	up := exec.CommandContext(t.Context(), w.cfg.Program, "migrate", "up")
	up.Env = append(os.Environ(), "FENCEGATE_POSTGRES_URL=postgres://postgres@"+server+"/postgres?sslmode=disable")
	w.done(up)
	effects, err := os.ReadFile(filepath.Join("..", "judge", "effects.sql"))
	if err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{string(effects), s3WorldLogins} {
		if _, err := w.admin.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	redis := w.addr()
	redisServer, err := exec.LookPath("redis-server")
	if err != nil {
		t.Fatal(err)
	}
	w.start(child.Spec{Path: redisServer, Args: []string{"--port", port(redis), "--save", "", "--dir", dir}})
	for range 2 {
		w.gateway(server, redis)
	}
	return w
}

func (w *s3World) done(cmd *exec.Cmd) {
	w.t.Helper()
	if out, err := cmd.CombinedOutput(); err != nil {
		w.t.Fatalf("%s: %v: %s", cmd, err, out)
	}
}

func (w *s3World) addr() string {
	w.t.Helper()
	free, err := child.FreePort()
	if err != nil {
		w.t.Fatal(err)
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(free))
}

func port(addr string) string { _, p, _ := net.SplitHostPort(addr); return p }

func (w *s3World) start(spec child.Spec) {
	w.t.Helper()
	log, err := os.Create(filepath.Join(w.dir, fmt.Sprintf("log-%d", resources.Add(1))))
	if err != nil {
		w.t.Fatal(err)
	}
	spec.Log = log
	p, err := child.Start(spec)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		p.Stop(10 * time.Second)
		if text, err := os.ReadFile(log.Name()); w.t.Failed() && err == nil {
			w.t.Logf("%s:\n%s", spec.Path, text[max(0, len(text)-4000):])
		}
		_ = log.Close()
	})
}

// postgresFolder is the folder of PostgreSQL's programs: in PATH, or Debian's.
func (w *s3World) postgresFolder() string {
	w.t.Helper()
	if path, err := exec.LookPath("postgres"); err == nil {
		return filepath.Dir(path)
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	if len(found) == 0 {
		w.t.Fatal("there is no PostgreSQL")
	}
	return found[len(found)-1]
}

// postgres starts a server whose logins need no password, and returns its address.
func (w *s3World) postgres() string {
	w.t.Helper()
	bin := w.postgresFolder()
	data, addr := filepath.Join(w.dir, "pg"), w.addr()
	var as *syscall.Credential // PostgreSQL does not run as root
	if os.Getuid() == 0 {
		as = &syscall.Credential{Uid: 65534, Gid: 65534}
	}
	for d := w.dir; len(d) > len(os.TempDir()); d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o711); err != nil {
			w.t.Fatal(err)
		}
	}
	if err := errors.Join(os.Mkdir(data, 0o700), os.Chown(data, 65534, 65534)); err != nil {
		w.t.Fatal(err)
	}
	made := exec.CommandContext(w.t.Context(), bin+"/initdb", "-D", data, "-A", "trust", "-U", "postgres", "--no-sync")
	made.SysProcAttr = &syscall.SysProcAttr{Credential: as}
	made.Dir = data
	w.done(made)
	w.start(child.Spec{
		Path: bin + "/postgres", Credential: as, StopSignal: syscall.SIGINT,
		Args: []string{
			"-D", data, "-p", port(addr), "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=",
			"-c", "fsync=off",
		},
	})
	var err error
	if w.admin, err = pgxpool.New(w.t.Context(), "postgres://postgres@"+addr+"/postgres?sslmode=disable"); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(w.admin.Close)
	w.eventually(w.admin.Ping)
	return addr
}

func (w *s3World) eventually(try func(context.Context) error) {
	w.t.Helper()
	ctx, tick := bounded(w.t), time.NewTicker(20*time.Millisecond)
	defer tick.Stop()
	for err := try(ctx); err != nil; err = try(ctx) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			w.t.Fatal(err)
		}
	}
}

// gateway starts another gateway.
func (w *s3World) gateway(server, redis string) {
	w.t.Helper()
	master := filepath.Join(w.dir, "master")
	if err := os.WriteFile(master, []byte("test:"+strings.Repeat("4f", 32)), 0o600); err != nil {
		w.t.Fatal(err)
	}
	api, s3 := w.addr(), w.addr()
	w.start(child.Spec{
		Path: w.cfg.Program,
		Args: []string{
			"serve", "--redis", redis, "--init", "--master-key-file", master, "--node-timeout", "5s", "--drain-timeout", "1s",
			"--api-listen", api, "--pg-listen", w.addr(), "--s3-listen", s3,
			"--blobs", filepath.Join(w.dir, "blobs"), "--bucket", "robust=prefix:1",
		},
		Env: append(os.Environ(), "FENCEGATE_POSTGRES_URL=postgres://gateway@"+server+"/postgres?sslmode=disable",
			"FENCEGATE_SQL_URL=postgres://for_sql@"+server+"/postgres?sslmode=disable"),
	})
	g := Gateway{API: "http://" + api, S3: "http://" + s3}
	w.cfg.Gateways = append(w.cfg.Gateways, g)
	c, err := client.New(client.Config{URL: g.API})
	if err != nil {
		w.t.Fatal(err)
	}
	w.eventually(func(ctx context.Context) error {
		lease, err := c.Acquire(ctx, client.AcquireRequest{Resource: "ready", TTL: time.Second})
		if err != nil {
			return err
		}
		return c.Release(ctx, lease.Handle)
	})
}

var resources atomic.Int64

// resource returns a new resource with its row.
func (w *s3World) resource(t *testing.T) string {
	t.Helper()
	name := fmt.Sprintf("robust/r0-%d", resources.Add(1))
	c := w.api(t)
	lease, err := c.Acquire(t.Context(), client.AcquireRequest{Resource: name, TTL: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	grant, err := lease.Grant()
	if err != nil {
		t.Fatal(err)
	}
	err = pgfence.InTx(t.Context(), w.admin, grant, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "INSERT INTO judged.registers (resource) VALUES ($1)", name)
		return err
	})
	if err := errors.Join(err, c.Release(t.Context(), lease.Handle)); err != nil {
		t.Fatal(err)
	}
	return name
}

func (w *s3World) api(t *testing.T) *client.Client {
	t.Helper()
	c, err := client.New(client.Config{URL: w.cfg.Gateways[0].API})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// effects returns the values of a register, in order.
func (w *s3World) effects(t *testing.T, register string) (values []string) {
	t.Helper()
	const inOrder = "SELECT COALESCE(array_agg(value ORDER BY seq), '{}') FROM judged.effects WHERE register = $1"
	if err := w.admin.QueryRow(t.Context(), inOrder, register).Scan(&values); err != nil {
		t.Fatal(err)
	}
	return values
}
