//go:build !linux

package pgwire

import (
	"net"
	"time"
)

// silence is known on Linux only. Elsewhere only TCP's probes end the session of a dead client, after ten of them.
func silence(*net.TCPConn) (time.Duration, bool) { return 0, false }

func probeFullWindows(*net.TCPConn, time.Duration) {}
