package runner

import "syscall"

// attributes makes Linux send TERM to the command when this process dies, so that it does not continue under a lease
// that is no longer renewed.
func attributes(group bool) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: group, Pdeathsig: syscall.SIGTERM}
}
