//go:build unix

package pgserver

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/internal/child"
)

// initialize runs initdb in a folder with a temporary name and
// renames it, so that an interrupted run leaves no partial cluster.
func (s *Server) initialize(ctx context.Context) error {
	passwordFile := filepath.Join(s.cfg.Dir, "password")
	if _, err := os.Stat(filepath.Join(s.data(), "PG_VERSION")); err == nil {
		text, err := os.ReadFile(passwordFile)
		s.password = strings.TrimSpace(string(text))
		return err
	}
	s.sweepAttempts()
	s.password = rand.Text()
	if err := os.WriteFile(passwordFile, []byte(s.password+"\n"), 0o600); err != nil {
		return err
	}
	fresh, err := os.MkdirTemp(s.cfg.Dir, attemptPrefix)
	if err != nil {
		return err
	}
	if err := s.user.own(fresh); err != nil {
		return err
	}
	if err := s.initdb(ctx, fresh); err != nil {
		return err
	}
	return os.Rename(fresh, s.data())
}

// attemptPrefix begins the names of initdb's temporary folders. Each attempt has its own name, because a killed attempt
// may still write to its folder for a moment.
const attemptPrefix = "data.new-"

// sweepAttempts is best effort: what can't be removed yet is removed at the next start.
func (s *Server) sweepAttempts() {
	left, _ := filepath.Glob(filepath.Join(s.cfg.Dir, attemptPrefix+"*"))
	for _, path := range left {
		_ = os.RemoveAll(path)
	}
}

func (s *Server) initdb(ctx context.Context, dir string) error {
	// initdb reads the password from a file that its user can read.
	pwfile := dir + ".password"
	defer os.Remove(pwfile)
	if err := os.WriteFile(pwfile, []byte(s.password+"\n"), 0o600); err != nil {
		return err
	}
	if err := s.user.own(pwfile); err != nil {
		return err
	}
	args := []string{
		"--pgdata", dir, "--username", Superuser, "--pwfile", pwfile,
		"--auth", "scram-sha-256", "--encoding", "UTF8", "--no-locale",
	}
	if s.cfg.Fast {
		args = append(args, "--no-sync")
	}
	cmd := exec.CommandContext(ctx, filepath.Join(s.cfg.BinDir, "initdb"), args...)
	cmd.Env, cmd.Dir = s.env(), "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.user.credential(), Setpgid: true}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("initdb: %w", err)
	}
	group := -cmd.Process.Pid // initdb's group includes postgres
	err := child.Adopt(group, syscall.SIGKILL)
	if err != nil {
		_ = syscall.Kill(group, syscall.SIGKILL)
	}
	waitErr := cmd.Wait()
	child.Disown(group)
	switch {
	case ctx.Err() != nil:
		_ = syscall.Kill(group, syscall.SIGKILL)
		return ctx.Err()
	case err != nil || waitErr != nil:
		return fmt.Errorf("initdb: %w: %s", errors.Join(err, waitErr), strings.TrimSpace(out.String()))
	}
	return nil
}

// env is a minimal environment, so that a stray PGDATA or PGPORT has no effect.
func (s *Server) env() []string {
	env := []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "HOME=" + s.cfg.Dir}
	for _, name := range []string{"TZ", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// attempts bounds how often another free port is tried: another process may take a port between finding and binding it.
const attempts = 5

func (s *Server) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Patience)
	defer cancel()
	for n := 1; ; n++ {
		port, err := s.choosePort()
		if err != nil {
			return err
		}
		s.port = port
		err = s.startOnce(ctx)
		switch {
		case err == nil:
			s.cfg.Logger.Info("PostgreSQL is up", "address", s.Addr(), "binaries", s.cfg.BinDir, "pid", s.Pid())
			return os.WriteFile(filepath.Join(s.cfg.Dir, "port"), []byte(strconv.Itoa(port)+"\n"), 0o600)
		case ctx.Err() != nil:
			return err
		case strings.Contains(err.Error(), "pre-existing shared memory block"):
			// Backends of a killed postmaster are still exiting.
			if err := pause(ctx, 200*time.Millisecond); err != nil {
				return err
			}
		case n >= attempts || s.cfg.Port != 0 || !strings.Contains(err.Error(), "could not bind"):
			return err
		}
	}
}

// choosePort prefers the last run's port, so that addresses survive a restart.
func (s *Server) choosePort() (int, error) {
	if s.cfg.Port != 0 {
		return s.cfg.Port, nil
	}
	if text, err := os.ReadFile(filepath.Join(s.cfg.Dir, "port")); err == nil {
		if l, err := net.Listen("tcp", "127.0.0.1:"+strings.TrimSpace(string(text))); err == nil {
			return l.Addr().(*net.TCPAddr).Port, l.Close()
		}
	}
	return child.FreePort()
}

func (s *Server) startOnce(ctx context.Context) error {
	log, err := os.Create(filepath.Join(s.cfg.Dir, "postgresql.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	death := syscall.SIGINT // ends sessions, then writes a checkpoint
	if s.cfg.Ephemeral {
		death = syscall.SIGQUIT // at once: no data is kept
	}
	s.proc, err = child.Start(child.Spec{
		Path: filepath.Join(s.cfg.BinDir, "postgres"), Args: s.args(), Env: append(s.env(), s.cfg.Env...), Dir: "/",
		Log: log, Credential: s.user.credential(), StopSignal: death,
	})
	if err != nil {
		return err
	}
	if err := s.proc.Ready(ctx, s.answers); err != nil {
		s.proc.Stop(5 * time.Second)
		return fmt.Errorf("it did not start: %w%s", err, lastLines(log.Name()))
	}
	return nil
}

func (s *Server) args() []string {
	set := map[string]string{
		"listen_addresses":  "127.0.0.1",
		"port":              strconv.Itoa(s.port),
		"logging_collector": "off",
		"log_destination":   "stderr",
		// A Unix socket's path is limited to about 100 bytes. Loopback TCP has no such limit.
		"unix_socket_directories": "",
	}
	// Shared memory is in the folder, where a killed server leaves nothing behind.
	if s.cfg.Fast {
		maps.Copy(set, map[string]string{"fsync": "off", "full_page_writes": "off", "dynamic_shared_memory_type": "mmap"})
	}
	maps.Copy(set, s.cfg.Settings)
	args := []string{"-D", s.data()}
	for _, name := range slices.Sorted(maps.Keys(set)) {
		args = append(args, "-c", name+"="+set[name])
	}
	return args
}

// answers checks whether the server accepts connections, and is ours.
func (s *Server) answers(ctx context.Context) error {
	// A cheap check first, so that waiting costs no connections.
	pid, err := readPidFile(s.data())
	if err != nil {
		return err
	}
	if pid.pid != s.proc.Pid() || !strings.HasPrefix(pid.status, "ready") {
		return errors.New("not ready yet")
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.URL("postgres"))
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// lastLines quotes the end of a log for an error.
func lastLines(file string) string {
	text, err := os.ReadFile(file)
	if err != nil || len(text) == 0 {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return "; its log ends: " + strings.Join(lines[max(0, len(lines)-5):], " | ")
}
