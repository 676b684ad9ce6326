//go:build unix

package testenv

import (
	"fmt"
	"syscall"
	"testing"
)

// DeadAddr is a loopback address that refuses connections until the test ends: its port is bound, so that no other
// process gets it, and nothing listens.
func DeadAddr(t testing.TB) string {
	t.Helper()
	port, err := takePort(t)
	if err != nil {
		fatal(t, fmt.Errorf("no port on loopback: %w", err))
	}
	return fmt.Sprintf("127.0.0.1:%d", port)
}

func takePort(t testing.TB) (int, error) {
	t.Helper()
	syscall.ForkLock.RLock()
	socket, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(socket)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return 0, err
	}
	t.Cleanup(func() { _ = syscall.Close(socket) })
	if err := syscall.Bind(socket, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return 0, err
	}
	name, err := syscall.Getsockname(socket)
	if err != nil {
		return 0, err
	}
	return name.(*syscall.SockaddrInet4).Port, nil
}
