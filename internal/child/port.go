//go:build unix

package child

import (
	"fmt"
	"math/rand/v2"
	"net"
)

// Ports below lastPort are given to nobody who asks for any port, as each connection
// does: Linux takes those from 32768 on, others take higher ones.
const (
	firstPort = 10000
	lastPort  = 32768
	portTries = 100
)

// FreePort names a port of loopback that was free a moment ago, and that nobody gets by
// chance: it is still there when a server that was killed starts again.
func FreePort() (int, error) {
	for try := 1; ; try++ {
		port := firstPort + rand.IntN(lastPort-firstPort)
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		switch {
		case err == nil:
			return port, l.Close()
		case try == portTries:
			return 0, fmt.Errorf("no free port on loopback: %w", err)
		}
	}
}
