//go:build unix

package child

import "syscall"

// Adopt has the watchdog send sig to a process that was started otherwise when
// this process ends, in whatever way; a negative pid is a process group. [Disown] it
// when it has ended.
func Adopt(pid int, sig syscall.Signal) error { return guard.add(pid, sig) }

// Prepare starts the watchdog, so that what is adopted next is guarded at once.
func Prepare() error { return guard.tell("\n") }

// Disown says that an adopted process has ended.
func Disown(pid int) { guard.remove(pid) }

// RemoveContainerAtDeath has the container of that name removed, with its
// volumes, when this process ends without having done so. It needs the docker
// command; host is what DOCKER_HOST would say.
func RemoveContainerAtDeath(host, name string) error { return guard.tell("c %s %s\n", host, name) }

// ContainerRemoved says that a container named to [RemoveContainerAtDeath] is gone.
func ContainerRemoved(name string) { _ = guard.tell("g %s\n", name) }
