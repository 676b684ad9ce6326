package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/internal/child"
	"github.com/fencegate/fencegate/internal/pgserver"
	"github.com/fencegate/fencegate/internal/redisserver"
)

// contender is one way to PostgreSQL.
type contender struct{ name, host, port string }

// world is a PostgreSQL for the benchmark and the contenders before it.
type world struct {
	dir        string
	server     *pgserver.Server
	password   string
	pgbench    string
	contenders []contender
	children   []*child.Process
}

// start starts a world. scale is pgbench's: the number of TPC-B branches, for whose rows the transactions wait.
func start(ctx context.Context, clients, scale int, only []string) (w *world, err error) {
	w = &world{}
	if w.dir, err = os.MkdirTemp("", "bench-pgwire-"); err != nil {
		return nil, err
	}
	if err = child.RemoveAtDeath(w.dir); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close())
		}
	}()
	if err = os.Chmod(w.dir, 0o711); err != nil { // as root, the servers run as another user
		return w, err
	}
	w.server, err = pgserver.Start(ctx, pgserver.Config{Dir: filepath.Join(w.dir, "pg"), Ephemeral: true, Fast: true, Settings: map[string]string{
		"max_connections": strconv.Itoa(4*clients + 32), "shared_buffers": "256MB", "autovacuum": "off", "checkpoint_timeout": "1h", "max_wal_size": "8GB", "jit": "off",
	}})
	if err != nil {
		return w, err
	}
	u, err := url.Parse(w.server.URL("postgres"))
	if err != nil {
		return w, err
	}
	w.password, _ = u.User.Password()
	if w.pgbench, err = findPgbench(); err != nil {
		return w, err
	}
	direct := contender{"direct", u.Hostname(), u.Port()}
	w.contenders = []contender{direct}
	fill := exec.CommandContext(ctx, w.pgbench, "-i", "-q", "-s", strconv.Itoa(scale), "-h", direct.host, "-p", direct.port, "-U", "postgres", "postgres")
	fill.Env = append(os.Environ(), "PGPASSWORD="+w.password, "PGSSLMODE=disable")
	if out, err := fill.CombinedOutput(); err != nil {
		return w, fmt.Errorf("pgbench -i: %w: %s", err, out)
	}
	conn, err := w.connect(ctx, direct)
	if err != nil {
		return w, err
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err = conn.Exec(ctx, "CREATE UNLOGGED TABLE landing (n int, note text)").ReadAll(); err != nil {
		return w, err
	}
	for name, begin := range map[string]func(contender) (string, error){"iocopy": w.ours("iocopy"), "pgbouncer": w.pgbouncer, "ours": w.ours("ours")} {
		if len(only) > 0 && !slices.Contains(only, name) {
			continue
		}
		addr, err := begin(direct)
		if err != nil {
			return w, fmt.Errorf("%s: %w", name, err)
		}
		host, port, _ := net.SplitHostPort(addr)
		w.contenders = append(w.contenders, contender{name, host, port})
	}
	return w, w.answering(ctx)
}

// findPgbench also searches Debian's folder.
func findPgbench() (string, error) {
	if path, err := exec.LookPath("pgbench"); err == nil {
		return path, nil
	}
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/pgbench")
	if err != nil || len(found) == 0 {
		return "", errors.New("pgbench is missing")
	}
	return found[len(found)-1], nil
}

func (w *world) connect(ctx context.Context, on contender) (*pgconn.PgConn, error) {
	u := url.URL{Scheme: "postgres", User: url.UserPassword("postgres", w.password), Host: net.JoinHostPort(on.host, on.port), Path: "/postgres", RawQuery: "sslmode=disable"}
	return pgconn.Connect(ctx, u.String())
}

// answering waits until each contender answers.
func (w *world) answering(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	for _, one := range w.contenders {
		for {
			conn, err := w.connect(ctx, one)
			if err == nil {
				_ = conn.Close(ctx)
				break
			}
			if ctx.Err() != nil {
				return fmt.Errorf("%s does not answer: %w", one.name, err)
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	return nil
}

// ours runs this program as a relay.
func (w *world) ours(kind string) func(contender) (string, error) {
	return func(to contender) (string, error) {
		addr, err := redisserver.FreeAddr()
		if err != nil {
			return "", err
		}
		p, err := startRelay(kind, addr, "", net.JoinHostPort(to.host, to.port))
		if err == nil {
			w.children = append(w.children, p)
		}
		return addr, err
	}
}

// pgbouncer relays in session mode and passes on the clients' logins.
func (w *world) pgbouncer(to contender) (string, error) {
	path, err := exec.LookPath("pgbouncer")
	if err != nil {
		path = "/usr/sbin/pgbouncer"
	}
	addr, err := redisserver.FreeAddr()
	if err != nil {
		return "", err
	}
	_, port, _ := net.SplitHostPort(addr)
	users, ini := filepath.Join(w.dir, "users.txt"), filepath.Join(w.dir, "pgbouncer.ini")
	config := strings.Join([]string{
		"[databases]", "postgres = host=" + to.host + " port=" + to.port, "[pgbouncer]", "listen_addr = 127.0.0.1", "listen_port = " + port,
		"unix_socket_dir =", "auth_type = trust", "auth_file = " + users, "pool_mode = session", "max_client_conn = 1000", "default_pool_size = 500",
		"ignore_startup_parameters = extra_float_digits", "log_connections = 0", "log_disconnections = 0", "so_reuseport = 0", "",
	}, "\n")
	files := map[string]string{users: fmt.Sprintf("%q %q\n", "postgres", w.password), ini: config}
	who := credential()
	for name, text := range files {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			return "", err
		}
		if who != nil {
			if err := os.Chown(name, int(who.Uid), int(who.Gid)); err != nil {
				return "", err
			}
		}
	}
	p, err := child.Start(child.Spec{Path: path, Args: []string{"-q", ini}, Dir: w.dir, Credential: who, StopSignal: syscall.SIGINT})
	if err == nil {
		w.children = append(w.children, p)
	}
	return addr, err
}

// credential is a user other than root, because PgBouncer refuses to run as root.
func credential() *syscall.Credential {
	if os.Geteuid() != 0 {
		return nil
	}
	u, err := user.Lookup("nobody")
	if err != nil {
		return nil
	}
	uid, _ := strconv.ParseUint(u.Uid, 10, 32)
	gid, _ := strconv.ParseUint(u.Gid, 10, 32)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}

func (w *world) close() (err error) {
	for _, p := range w.children {
		p.Stop(3 * time.Second)
	}
	if w.server != nil {
		err = w.server.Kill()
	}
	return errors.Join(err, os.RemoveAll(w.dir))
}
