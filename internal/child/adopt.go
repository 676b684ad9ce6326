//go:build unix

package child

import "syscall"

// Adopt makes the watchdog send sig to a process that this package did not start when this process ends, in any way. A
// negative pid is a process group. Call [Disown] when the process has ended.
func Adopt(pid int, sig syscall.Signal) error { return guard.add(pid, sig) }

// Prepare starts the watchdog, so that later adoptions take effect at once.
func Prepare() error { return guard.tell("\n") }

// Disown reports that an adopted process has ended.
func Disown(pid int) { guard.remove(pid) }

// RemoveContainerAtDeath makes the watchdog remove the container of that name, with its volumes, if this process ends
// without having removed it. It needs the docker command; host is a value for DOCKER_HOST.
func RemoveContainerAtDeath(host, name string) error { return guard.tell("c %s %s\n", host, name) }

// ContainerRemoved reports that a container passed to [RemoveContainerAtDeath] is gone.
func ContainerRemoved(name string) { _ = guard.tell("g %s\n", name) }
