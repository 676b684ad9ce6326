package pgwire

import (
	"net"
	"time"
)

// A session's lease is renewed only while its client is alive, as far as TCP can tell: the lease ends a TTL after the
// last packet from the client's machine. Data, acknowledgements and answers to TCP's probes count, so an idle client or
// a slow reader stays alive. Behind a proxy, the proxy's machine is the one that answers.

const (
	// minProbe is TCP's shortest pause between two probes.
	minProbe = time.Second
	// minSilence is the shortest silence that means anything: probes may be lost.
	minSilence = 3 * minProbe
)

// probeFor makes TCP probe the client often enough for a lease of this TTL.
func (s *session) probeFor(ttl time.Duration) {
	every := max(minProbe, (ttl / 3).Truncate(time.Second))
	if tcp, ok := s.raw.(*net.TCPConn); ok {
		_ = tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: every, Interval: every})
		probeFullWindows(tcp, every)
	}
}

// allowed returns how long the lease may live from now on: 0 once the client has been silent for a TTL. If the silence
// is not known, it is the TTL.
func (s *session) allowed(ttl time.Duration) time.Duration {
	tcp, ok := s.raw.(*net.TCPConn)
	if !ok {
		return ttl // a Unix socket ends with its process
	}
	silent, known := silence(tcp)
	if !known {
		return ttl
	}
	return min(ttl, max(ttl, minSilence)-silent)
}
