package child_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/fencegate/fencegate/internal/child"
)

// After the signal alone, a process runs on for a moment, and answers.
func TestWhatIsFrozenStands(t *testing.T) {
	t.Parallel()
	p, err := child.Start(child.Spec{Path: "/bin/sh", Args: []string{"-c", "while :; do :; done"}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	for range 300 {
		if err := child.Freeze(p.Pid()); err != nil {
			t.Fatal(err)
		}
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Pid()))
		if err != nil {
			t.Fatal(err)
		}
		if _, state, _ := bytes.Cut(stat, []byte(") ")); state[0] != 'T' {
			t.Fatalf("its state is %c; want T", state[0])
		}
		if err := child.Freeze(p.Pid()); err != nil {
			t.Fatalf("again: %v", err)
		}
		if err := p.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
	}
	p.Stop(time.Second)
	if err := child.Freeze(p.Pid()); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("after its end: %v", err)
	}
}
