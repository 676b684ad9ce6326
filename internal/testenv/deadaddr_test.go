//go:build unix

package testenv_test

import (
	"errors"
	"net"
	"syscall"
	"testing"

	"github.com/fencegate/fencegate/internal/testenv"
)

func TestADeadAddressRefusesAndIsNobodys(t *testing.T) {
	t.Parallel()
	addr := testenv.DeadAddr(t)
	if conn, err := net.Dial("tcp", addr); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dial: %v, %v", conn, err)
	}
	if l, err := net.Listen("tcp", addr); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("listen: %v, %v", l, err)
	}
	if other := testenv.DeadAddr(t); other == addr {
		t.Errorf("%s twice", addr)
	}
}
