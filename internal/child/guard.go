//go:build unix

package child

import (
	_ "embed"
	"fmt"
	"io"
	"os/exec"
	"sync"
	"syscall"
)

//go:embed watchdog.sh
var watchdogScript string

// guard is this process's one watchdog, started with the first thing to guard.
var guard watchdog

type watchdog struct {
	mu sync.Mutex
	in io.WriteCloser // only this process holds it; its end is the signal
}

// RemoveAtDeath has the folder removed when this process ends without having
// done so.
func RemoveAtDeath(folder string) error { return guard.tell("d %s\n", folder) }

// Removed says that a folder named to [RemoveAtDeath] needs no removal any more.
func Removed(folder string) { _ = guard.tell("k %s\n", folder) }

// UnmountAtDeath has the file system at a folder unmounted when this process ends
// without having done so. The folder's path has no blanks.
func UnmountAtDeath(folder string) error { return guard.tell("m %s\n", folder) }

// Unmounted says that what was named to [UnmountAtDeath] is unmounted.
func Unmounted(folder string) { _ = guard.tell("u %s\n", folder) }

func (w *watchdog) add(pid int, sig syscall.Signal) error { return w.tell("+ %d %d\n", pid, int(sig)) }

// remove is best effort: a watchdog that is gone watches nothing.
func (w *watchdog) remove(pid int) { _ = w.tell("- %d\n", pid) }

func (w *watchdog) tell(format string, args ...any) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.in == nil {
		cmd := exec.Command("/bin/sh", "-c", watchdogScript, "fencegate-watchdog")
		cmd.Dir = "/"
		// A group of its own: a terminal's Ctrl-C must not end it before its work.
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
