//go:build linux

// Package clockshim lets a test shift the wall clock of a running server process, back and forth. The monotonic clock
// is unchanged, as when an operator sets a machine's time.
//
// The guarantee: a dynamically linked process that was started with [Clock.Env] sees the offset of [Clock.Set] from its
// next clock reading on.
//
//	clock := clockshim.New(t)
//	srv, err := redisserver.Start(ctx, redisserver.Config{Env: clock.Env()})
//	…
//	clock.Set(time.Hour) // keys with a shorter TTL have expired
package clockshim

import (
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

//go:embed preload/clock.c
var source string

// Clock is the wall clock of the processes started with its Env.
type Clock struct {
	library string
	file    *os.File
}

// New compiles the shim and returns a clock without offset. It needs a C compiler.
func New(t testing.TB) *Clock {
	t.Helper()
	dir := t.TempDir()
	clock, err := Compile(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = clock.Close() })
	return clock
}

// Another returns another clock of the same shim.
func (c *Clock) Another(t testing.TB) *Clock {
	t.Helper()
	other, err := c.In(filepath.Join(t.TempDir(), "offset"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = other.Close() })
	return other
}

// Compile compiles the shim in a folder and returns a clock without offset. It needs a C compiler.
func Compile(dir string) (*Clock, error) {
	text, library := filepath.Join(dir, "clock.c"), filepath.Join(dir, "clock.so")
	if err := os.WriteFile(text, []byte(source), 0o600); err != nil {
		return nil, err
	}
	out, err := exec.Command("cc", "-O1", "-shared", "-fPIC", "-o", library, text).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("clockshim: cc: %w\n%s", err, out)
	}
	return (&Clock{library: library}).In(filepath.Join(dir, "offset"))
}

// In returns another clock of the same shim, with its offset in a new file. On the zero Clock it is for programs that
// read the file themselves, without a shim.
func (c *Clock) In(path string) (*Clock, error) {
	file, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	other := &Clock{library: c.library, file: file}
	if err := other.Set(0); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return other, nil
}

// Close closes the file. Processes that were started with it keep it.
func (c *Clock) Close() error { return c.file.Close() }

// Env returns the variables that the process needs.
func (c *Clock) Env() []string {
	env := []string{"FENCEGATE_CLOCK=" + c.file.Name()}
	if c.library != "" {
		env = append(env, "LD_PRELOAD="+c.library)
	}
	return env
}

// Set sets the clock's offset to d; a negative one is into the past.
func (c *Clock) Set(d time.Duration) error {
	_, err := c.file.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(d)), 0)
	return err
}
