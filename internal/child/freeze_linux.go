package child

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Freeze stops a child of this process, which need not have been started here, and
// returns when all of its threads stand: the signal alone reaches those that run at
// that moment only later. An end that comes first is an error, and is left to whoever
// waits for the child.
func Freeze(pid int) error {
	if err := signal(pid, syscall.SIGSTOP); err != nil {
		return fmt.Errorf("freeze process %d: %w", pid, err)
	}
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PID, pid, &info, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT, nil)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return fmt.Errorf("freeze process %d: %w", pid, err)
		case info.Code != cldStopped:
			return fmt.Errorf("freeze process %d: %w", pid, os.ErrProcessDone)
		}
		return nil
	}
}

// cldStopped is CLD_STOPPED of waitid(2).
const cldStopped = 5
