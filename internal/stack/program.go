//go:build unix

package stack

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/fencegate/fencegate/internal/child"
)

// Run starts a server, whose output goes into a file named log in a folder of its name, and returns when look succeeds.
// The error has the end of the log. Close ends the server, and fails if that ended otherwise than with status 0 or by
// its stop signal.
func (s *Stack) Run(ctx context.Context, name string, spec child.Spec, look func(context.Context) error) (*child.Process, error) {
	dir, err := s.folder(name)
	if err != nil {
		return nil, err
	}
	if spec.Log, err = os.Create(filepath.Join(dir, "log")); err != nil {
		return nil, err
	}
	defer func() { _ = spec.Log.Close() }()
	process, err := child.Start(spec)
	if err != nil {
		return nil, err
	}
	s.AtClose(func() error {
		err := end(process, 10*time.Second, name, spec.Log.Name())
		if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.Sys().(syscall.WaitStatus).Signal() == cmp.Or(spec.StopSignal, syscall.SIGTERM) {
			return nil // HAProxy has no handler for it
		}
		return err
	})
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := process.Ready(ctx, look); err != nil {
		return nil, fmt.Errorf("%s is not ready: %w%s", name, err, tail(spec.Log.Name()))
	}
	return process, nil
}

// end stops a process. The error says how it ended otherwise than in order: with a status, or by SIGKILL because it took
// longer than patience.
func end(p *child.Process, patience time.Duration, name, log string) error {
	p.Stop(patience)
	if err := p.Err(); err != nil {
		return fmt.Errorf("%s ended: %w%s", name, err, tail(log))
	}
	return nil
}

// tail is the end of a file, for an error.
func tail(file string) string {
	text, _ := os.ReadFile(file)
	return "\n" + string(text[max(0, len(text)-2000):])
}

// Program builds fencegate, as its users do, and returns its path. It builds once.
func (s *Stack) Program(ctx context.Context) (string, error) {
	s.build.Do(func() {
		root, err := Root()
		if err != nil {
			s.fault = err
			return
		}
		s.built = filepath.Join(s.Dir, "fencegate")
		s.fault = Build(ctx, root, "./cmd/fencegate", s.built)
	})
	return s.built, s.fault
}

// Root finds the folder of fencegate's sources: the working folder or one above it.
func Root() (string, error) {
	dir, err := os.Getwd()
	for ; err == nil; dir = filepath.Dir(dir) {
		text, _ := os.ReadFile(filepath.Join(dir, "go.mod"))
		if strings.HasPrefix(string(text), "module github.com/fencegate/fencegate\n") {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			err = errors.New("the working folder is outside of fencegate's sources")
		}
	}
	return "", err
}

// Build builds a package of the module in a folder. The error holds what the compiler reported.
func Build(ctx context.Context, dir, pkg, to string, flags ...string) error {
	cmd := exec.CommandContext(ctx, "go", append(append([]string{"build", "-o", to}, flags...), pkg)...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return errors.Join(ctx.Err(), fmt.Errorf("go build %s: %w: %s", pkg, err, bytes.TrimSpace(out)))
	}
	return nil
}
