//go:build unix

package stack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

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
