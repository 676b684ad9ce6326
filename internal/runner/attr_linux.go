package runner

import "syscall"

// attributes asks Linux to send the command TERM when this process dies, so
// that it does not work on under a lease that nobody renews.
func attributes(group bool) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: group, Pdeathsig: syscall.SIGTERM}
}
