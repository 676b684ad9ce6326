//go:build unix

package child

import (
	"fmt"
	"math/rand/v2"
	"net"
)

// The kernel assigns no port below lastPort to connections and listeners that ask for any port: Linux assigns ports
// from 32768 on, others higher ones.
const (
	firstPort = 10000
	lastPort  = 32768
	portTries = 100
)

// FreePort returns a loopback port that was free a moment ago, and that the kernel does not assign by itself. So it is
// still free when a killed server starts again.
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
