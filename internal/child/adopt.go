//go:build unix

package child

import "syscall"

// Adopt has the watchdog send sig to a process that was started otherwise when
// this process ends, in whatever way. [Disown] it when it has ended.
func Adopt(pid int, sig syscall.Signal) error { return guard.add(pid, sig) }

// Disown says that an adopted process has ended.
func Disown(pid int) { guard.remove(pid) }
