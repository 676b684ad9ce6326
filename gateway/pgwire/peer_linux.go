package pgwire

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// silence is how long nothing has come from the peer's machine.
func silence(conn *net.TCPConn) (silent time.Duration, known bool) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, false
	}
	var info *unix.TCPInfo
	if cerr := raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) }); cerr != nil || err != nil {
		return 0, false
	}
	// An acknowledgement that comes with data counts as data only.
	return time.Duration(min(info.Last_ack_recv, info.Last_data_recv)) * time.Millisecond, true
}

// tcpRTOMaxMS is TCP_RTO_MAX_MS, of Linux 6.15.
const tcpRTOMaxMS = 44

// probeFullWindows has TCP probe a peer whose window is full, as that of a client which
// does not read, as often as an idle one. Linux before 6.15 doubles these pauses up to
// two minutes: there a client that does not read for longer than its TTL may be taken for
// gone.
func probeFullWindows(conn *net.TCPConn, every time.Duration) {
	if raw, err := conn.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, tcpRTOMaxMS, int(every.Milliseconds()))
		})
	}
}
