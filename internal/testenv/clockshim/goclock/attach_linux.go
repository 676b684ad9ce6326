//go:build amd64 || arm64

package goclock

import (
	"sync/atomic"
	"syscall"
	"unsafe"
)

// The runtime's pointer to clock_gettime: 0, or the kernel's function for its C calling convention. The runtime pushes
// the name for others, in badlinkname_linux.go.
//
//go:linkname kernels runtime.vdsoClockgettimeSym
var kernels uintptr

// The assembly's variables.
var (
	shifted uintptr // address of its function
	offset  *int64
	next    uintptr //nolint:unused // the assembly reads it: the function for other clocks; 0: the system call
)

// attach maps the file with the offset, and puts the shifted clock in the place of the kernel's.
func attach(path string) error {
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = syscall.Close(fd) }()
	page, err := syscall.Mmap(fd, 0, int(unsafe.Sizeof(*offset)), syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return err
	}
	offset, next = (*int64)(unsafe.Pointer(&page[0])), kernels //nolint:gosec // the file has one int64
	atomic.StoreUintptr(&kernels, shifted)                     // other threads read it
	return nil
}
