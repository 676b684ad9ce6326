//go:build unix

package pgserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// CopyTo makes a physical copy of the running cluster in a new folder, with its password: a backup, or the start of a
// standby that streams from this server. [Start] on the folder runs it. The context bounds the copying.
func (s *Server) CopyTo(ctx context.Context, dir string, standby bool) error {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return err
	}
	if err := s.user.reaches(dir); err != nil {
		return err
	}
	data := filepath.Join(dir, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		return err
	}
	if err := s.user.own(data); err != nil {
		return err
	}
	args := []string{
		"--pgdata", data, "--host", "127.0.0.1", "--port", fmt.Sprint(s.port), "--username", Superuser,
		"--no-password", "--wal-method", "stream", "--checkpoint", "fast",
	}
	if s.cfg.Fast {
		args = append(args, "--no-sync")
	}
	if standby {
		args = append(args, "--write-recovery-conf")
	}
	if err := s.Tool(ctx, "pg_basebackup", args...); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "password"), []byte(s.password+"\n"), 0o600)
}

// Tool runs one of the cluster's programs, as the user that PostgreSQL runs as, in its own new folder, with the
// password in its environment. Its output is part of the error.
func (s *Server) Tool(ctx context.Context, name string, args ...string) error {
	scratch, err := os.MkdirTemp(s.cfg.Dir, "tool-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	if err := s.user.own(scratch); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(s.cfg.BinDir, name), args...)
	cmd.Env, cmd.Dir = append(s.env(), "PGPASSWORD="+s.password), scratch
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.user.credential()}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return errors.Join(ctx.Err(), fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(out.String())))
	}
	return nil
}
