//go:build unix

package stack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/fencegate/fencegate/internal/child"
)

// PgBouncerConfig configures a PgBouncer.
type PgBouncerConfig struct {
	To       string            // host:port of what it passes connections to
	Database string            // default: postgres
	Users    map[string]string // name → password; clients log in by name alone
	Settings map[string]string // of its section pgbouncer, such as pool_mode
}

// ErrNoPgBouncer reports that the machine has no PgBouncer.
var ErrNoPgBouncer = errors.New("no pgbouncer on this machine: scripts/need pgbouncer installs it")

// PgBouncer starts a PgBouncer as the user that the server runs as, because it refuses root, and returns its address.
func (p *Postgres) PgBouncer(ctx context.Context, cfg PgBouncerConfig) (addr string, err error) {
	path, err := exec.LookPath("pgbouncer")
	if err != nil {
		path, err = exec.LookPath("/usr/sbin/pgbouncer") // Debian's path
	}
	if err != nil {
		return "", ErrNoPgBouncer
	}
	if addr, err = FreeAddr(); err != nil {
		return "", err
	}
	host, port, _ := net.SplitHostPort(cfg.To)
	_, own, _ := net.SplitHostPort(addr)
	users, ini := filepath.Join(p.stack.Dir, "pgbouncer-"+own+".txt"), filepath.Join(p.stack.Dir, "pgbouncer-"+own+".ini")
	settings := map[string]string{
		"listen_addr": "127.0.0.1", "listen_port": own, "unix_socket_dir": "", "auth_type": "trust", "auth_file": users, "so_reuseport": "0",
	}
	maps.Copy(settings, cfg.Settings)
	var config, list strings.Builder
	fmt.Fprintf(&config, "[databases]\n%s = host=%s port=%s\n[pgbouncer]\n", cmp.Or(cfg.Database, "postgres"), host, port)
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&config, "%s = %s\n", name, settings[name])
	}
	for name, password := range cfg.Users {
		fmt.Fprintf(&list, "%q %q\n", name, password)
	}
	for file, text := range map[string]string{users: list.String(), ini: config.String()} {
		if err := errors.Join(os.WriteFile(file, []byte(text), 0o600), p.Give(file)); err != nil {
			return "", err
		}
	}
	spec := child.Spec{Path: path, Args: []string{"-q", ini}, Dir: p.stack.Dir, Credential: p.Owner(), StopSignal: syscall.SIGINT}
	_, err = p.stack.Run(ctx, "pgbouncer-"+own, spec, func(ctx context.Context) error {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "tcp", addr)
		if err != nil {
			return err
		}
		return conn.Close()
	})
	return addr, err
}
