package child

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Freeze stops a child of this process, whoever started it, and returns when all of its threads have stopped. The
// signal alone reaches running threads only later. If the child exits first, Freeze returns an error, and the exit
// status is left for the child's waiter.
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
