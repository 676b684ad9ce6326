//go:build unix

package child

import (
	_ "embed"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"syscall"
)

//go:embed watchdog.sh
var watchdogScript string

// guard is this process's only watchdog. It starts with the first thing to guard.
var guard watchdog

type watchdog struct {
	mu sync.Mutex
	in io.WriteCloser // only this process holds it; the watchdog acts when it closes
}

// RemoveAtDeath makes the watchdog remove the folder if this process ends without having removed it. A name with a
// line break is refused: the watchdog would read a part of it as another folder.
func RemoveAtDeath(folder string) error {
	if strings.Contains(folder, "\n") {
		return fmt.Errorf("watchdog: the folder's name %q has a line break", folder)
	}
	return guard.tell("d %s\n", folder)
}

// Removed reports that a folder passed to [RemoveAtDeath] is gone.
func Removed(folder string) { _ = guard.tell("k %s\n", folder) }

// UnmountAtDeath makes the watchdog unmount the file system at a folder if this process ends without having unmounted
// it. The folder's path must have no blanks.
func UnmountAtDeath(folder string) error { return guard.tell("m %s\n", folder) }

// Unmounted reports that a folder passed to [UnmountAtDeath] is unmounted.
func Unmounted(folder string) { _ = guard.tell("u %s\n", folder) }

func (w *watchdog) add(pid int, sig syscall.Signal) error { return w.tell("+ %d %d\n", pid, int(sig)) }

// remove is best effort: the watchdog may be gone.
func (w *watchdog) remove(pid int) { _ = w.tell("- %d\n", pid) }

func (w *watchdog) tell(format string, args ...any) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.in == nil {
		cmd := exec.Command("/bin/sh", "-c", watchdogScript, "fencegate-watchdog")
		cmd.Dir = "/"
		// The watchdog gets its own process group, so that a terminal's Ctrl-C does not end it early.
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		in, err := cmd.StdinPipe()
		if err != nil {
			return fmt.Errorf("watchdog: %w", err)
		}
		if err := cmd.Start(); err != nil {
			return fmt.Errorf("watchdog: %w", err)
		}
		w.in = in
	}
	if _, err := fmt.Fprintf(w.in, format, args...); err != nil {
		return fmt.Errorf("watchdog: %w", err)
	}
	return nil
}
