package pgwire

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// silence returns the time since the last packet from the peer's machine.
func silence(conn *net.TCPConn) (silent time.Duration, known bool) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, false
	}
	var info *unix.TCPInfo
	if cerr := raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) }); cerr != nil || err != nil {
		return 0, false
	}
	// An acknowledgement that arrives with data counts as data only.
	return time.Duration(min(info.Last_ack_recv, info.Last_data_recv)) * time.Millisecond, true
}

// tcpRTOMaxMS is TCP_RTO_MAX_MS, of Linux 6.15.
const tcpRTOMaxMS = 44

// probeFullWindows makes TCP probe a peer whose window is full, because the client does not read, as often as an idle
// one. Linux before 6.15 doubles these pauses up to two minutes, so a client that does not read for longer than its TTL
// may appear dead.
func probeFullWindows(conn *net.TCPConn, every time.Duration) {
	if raw, err := conn.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, tcpRTOMaxMS, int(every.Milliseconds()))
		})
	}
}
