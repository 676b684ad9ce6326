//go:build linux

// Package clockshim lets a test shift the wall clock of a server process, back
// and forth while it runs. The monotonic clock stays as it is, as when somebody
// sets a machine's time.
//
// The guarantee: a dynamically linked process that was started with
// [Clock.Env] sees what [Clock.Set] said from its next look at the clock on.
//
//	clock := clockshim.New(t)
//	srv, err := redisserver.Start(ctx, redisserver.Config{Env: clock.Env()})
//	…
//	clock.Set(time.Hour) // keys with less to live than that have expired
package clockshim

import (
	_ "embed"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"
)

//go:embed preload/clock.c
var source string

// Clock is what processes started with its Env believe the time to be.
type Clock struct {
	library string
	file    *os.File
	offset  atomic.Int64
}

// New compiles the shim and makes a clock that is right. It needs a C compiler.
func New(t testing.TB) *Clock {
	t.Helper()
	dir := t.TempDir()
	text, library := filepath.Join(dir, "clock.c"), filepath.Join(dir, "clock.so")
	if err := os.WriteFile(text, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("cc", "-O1", "-shared", "-fPIC", "-o", library, text).CombinedOutput()
	if err != nil {
		t.Fatalf("clockshim: cc: %v\n%s", err, out)
	}
	return (&Clock{library: library}).Another(t)
}

// Another makes one more clock of the same shim.
func (c *Clock) Another(t testing.TB) *Clock {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "offset"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	other := &Clock{library: c.library, file: file}
	if err := other.Set(0); err != nil {
		t.Fatal(err)
	}
	return other
}

// Env is what the process needs in its environment.
func (c *Clock) Env() []string {
	return []string{"LD_PRELOAD=" + c.library, "FENCEGATE_CLOCK=" + c.file.Name()}
}

// Set shifts the clock to d from what is right; negative: into the past.
func (c *Clock) Set(d time.Duration) error {
	c.offset.Store(int64(d))
	_, err := c.file.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(d)), 0)
	return err
}

// Offset is how far the clock is from what is right.
func (c *Clock) Offset() time.Duration { return time.Duration(c.offset.Load()) }
