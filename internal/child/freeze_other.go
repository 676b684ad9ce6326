//go:build unix && !linux

package child

import (
	"fmt"
	"os"
	"syscall"
)

// Freeze stops a child of this process, whoever started it, and returns when it has stopped. It must not be called
// twice without SIGCONT in between.
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
