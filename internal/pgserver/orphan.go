//go:build unix

package pgserver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// pidFile is the content of postmaster.pid.
type pidFile struct {
	pid    int
	data   string
	status string // "ready" padded with blanks, "starting", …
}

func readPidFile(data string) (pidFile, error) {
	text, err := os.ReadFile(filepath.Join(data, "postmaster.pid"))
	if err != nil {
		return pidFile{}, err
	}
	lines := strings.Split(string(text), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(lines[0]))
	if err != nil {
		return pidFile{}, fmt.Errorf("postmaster.pid: %w", err)
	}
	p := pidFile{pid: pid}
	if len(lines) > 1 {
		p.data = lines[1]
	}
	if len(lines) > 7 {
		p.status = lines[7]
	}
	return p, nil
}

// stopOrphan stops a server that an earlier run left on this folder. We hold the folder's lock, so no other process
// uses it. A pid file whose process is gone, or is another program now, is left to postgres.
func (s *Server) stopOrphan(ctx context.Context) error {
	old, err := readPidFile(s.data())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		// The file was torn by a crash: postgres refuses to start on it.
		return ignoreMissing(os.Remove(filepath.Join(s.data(), "postmaster.pid")))
	}
	if !s.isPostmaster(ctx, old.pid) {
		return nil
	}
	s.cfg.Logger.Warn("ending a PostgreSQL that an earlier run left behind", "pid", old.pid, "folder", s.cfg.Dir)
	for _, step := range []struct {
		sig      syscall.Signal
		patience time.Duration
	}{{syscall.SIGINT, 15 * time.Second}, {syscall.SIGQUIT, 5 * time.Second}, {syscall.SIGKILL, 5 * time.Second}} {
		if err := syscall.Kill(old.pid, step.sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("a PostgreSQL of an earlier run (pid %d) can't be ended: %w", old.pid, err)
		}
		ctx, cancel := context.WithTimeout(ctx, step.patience)
		gone := s.waitGone(ctx, old.pid)
		cancel()
		if gone {
			return nil
		}
	}
	return fmt.Errorf("a PostgreSQL of an earlier run (pid %d) does not end: end it, then start again", old.pid)
}

// isPostmaster reports whether pid is a postgres on this folder: its command line names the folder, see [Server.args].
func (s *Server) isPostmaster(ctx context.Context, pid int) bool {
	out, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	line := strings.ReplaceAll(string(out), "\x00", " ")
	if err != nil { // not Linux, or the process is gone
		out, err = exec.CommandContext(ctx, "ps", "-ww", "-o", "args=", "-p", strconv.Itoa(pid)).Output()
		if err != nil {
			return false
		}
		line = string(out)
	}
	return strings.Contains(line, "postgres") && strings.Contains(line, "-D "+s.data()+" ")
}

func (s *Server) waitGone(ctx context.Context, pid int) bool {
	for s.isPostmaster(ctx, pid) {
		if pause(ctx, 20*time.Millisecond) != nil {
			return false
		}
	}
	return true
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
