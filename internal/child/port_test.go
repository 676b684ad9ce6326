//go:build unix

package child_test

import (
	"fmt"
	"net"
	"testing"

	"github.com/fencegate/fencegate/internal/child"
)

func TestAFreePortIsOneThatNobodyGetsByChance(t *testing.T) {
	t.Parallel()
	for range 200 { // each stays taken until the test ends
		port, err := child.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		if port < 10000 || port >= 32768 {
			t.Fatalf("got %d, which any connection may be given", port)
		}
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			t.Logf("taken by another since: %v", err)
			continue
		}
		defer func() { _ = l.Close() }()
	}
}
