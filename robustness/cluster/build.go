package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
)

// withClock is added to each program: see package goclock. Everything else is built as always, and comes from Go's cache.
const withClock = `package main

import _ "github.com/fencegate/fencegate/internal/testenv/clockshim/goclock"
`

// Build builds the program in the folder source, with a wall clock that can be set while it runs. It is named after that
// folder and placed in dir. Files replaces files of any package: path → path, both absolute; nil: none.
func Build(ctx context.Context, source, dir string, files map[string]string) (program string, err error) {
	if source, err = filepath.Abs(source); err != nil {
		return "", err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return "", err
	}
	clock := filepath.Join(dir, "clock.go")
	all := map[string]string{filepath.Join(source, "zz_clock.go"): clock}
	maps.Copy(all, files)
	overlay, err := json.Marshal(map[string]any{"Replace": all})
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, filepath.Base(source)+".overlay.json")
	for path, text := range map[string][]byte{clock: []byte(withClock), file: overlay} {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			return "", err
		}
	}
	program = filepath.Join(dir, filepath.Base(source))
	cmd := exec.CommandContext(ctx, "go", "build", "-overlay", file, "-o", program, ".")
	cmd.Dir = source
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", errors.Join(ctx.Err(), fmt.Errorf("go build %s: %w: %s", source, err, bytes.TrimSpace(out)))
	}
	return program, nil
}
