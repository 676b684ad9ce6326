//go:build linux

package pglock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fencegate/fencegate/internal/child"
	"github.com/fencegate/fencegate/internal/leases/torture"
	"github.com/fencegate/fencegate/internal/pgserver"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/migrate"
)

// No token repeats or falls, and no resource has two holders, while PostgreSQL freezes for longer than a lease's TTL, or
// crashes.
func TestTortureOfPostgreSQL(t *testing.T) {
	t.Parallel()
	s := crashable(t)
	torture.Run(t, torture.Config{
		Servers: []torture.Server{{Addr: s.Addr(), Faults: []torture.Fault{torture.Frozen(3, s.freeze, s.thaw), torture.Killed(1, s.kill, s.start)}}},
		Setup:   s.url, TTL: 600 * time.Millisecond,
	})
}

// server is the test's own PostgreSQL.
type server struct {
	*pgserver.Server
	dir, url string
	port     int
	env      []string
	frozen   []int // processes
}

func crashable(t *testing.T, env ...string) *server {
	t.Helper()
	s := &server{dir: testenv.ServerDir(t), env: env}
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Stop() })
	s.url = s.URL("postgres")
	if err := migrate.Up(t.Context(), s.url, migrate.All); err != nil {
		t.Fatal(err)
	}
	return s
}

// start runs the server on its address again. It does nothing once the test's time is over.
func (s *server) start() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	s.Server, err = pgserver.Start(ctx, pgserver.Config{Dir: s.dir, Fast: true, Port: s.port, Env: s.env})
	if err == nil {
		_, port, _ := strings.Cut(s.Addr(), ":")
		s.port, err = strconv.Atoi(port)
	}
	return err
}

// kill kills the server and its children at once. A surviving backend would delay the next start.
func (s *server) kill() error {
	if err := s.freeze(); err != nil {
		return err
	}
	for _, pid := range s.frozen {
		_ = syscall.Kill(pid, syscall.SIGKILL)
		child.Disown(pid)
	}
	return s.Kill()
}

// freeze stops the server first, so that it starts no more children, and then its children.
func (s *server) freeze() error {
	if err := child.Freeze(s.Pid()); err != nil {
		return err
	}
	s.frozen = nil
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", s.Pid(), s.Pid()))
	for field := range bytes.FieldsSeq(text) {
		pid, bad := strconv.Atoi(string(field))
		err = errors.Join(err, bad, child.Adopt(pid, syscall.SIGKILL)) // a frozen process would outlive the test
		_ = syscall.Kill(pid, syscall.SIGSTOP)                         // it may have exited
		s.frozen = append(s.frozen, pid)
	}
	return err
}

// thaw resumes the children first: otherwise the server would consider them hung.
func (s *server) thaw() error {
	for _, pid := range s.frozen {
		_ = syscall.Kill(pid, syscall.SIGCONT)
		child.Disown(pid)
	}
	return syscall.Kill(s.Pid(), syscall.SIGCONT)
}
