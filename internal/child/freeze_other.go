//go:build unix && !linux

package child

import (
	"fmt"
	"os"
	"syscall"
)

// Freeze stops a child of this process, which need not have been started here, and
// returns when it stands. Not twice without SIGCONT between them.
func Freeze(pid int) error {
	if err := signal(pid, syscall.SIGSTOP); err != nil {
		return fmt.Errorf("freeze process %d: %w", pid, err)
	}
	for {
		var status syscall.WaitStatus
		_, err := syscall.Wait4(pid, &status, syscall.WUNTRACED, nil)
		switch {
		case err == syscall.EINTR:
			continue
		case err != nil:
			return fmt.Errorf("freeze process %d: %w", pid, err)
		case !status.Stopped():
			return fmt.Errorf("freeze process %d: %w", pid, os.ErrProcessDone)
		}
		return nil
	}
}
