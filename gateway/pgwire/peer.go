package pgwire

import (
	"net"
	"time"
)

// A leased session is renewed only while its client lives, as far as TCP can tell: the
// lease ends a TTL after the client's machine was last heard of. Data and acknowledgements
// count, and so do the answers to TCP's probes, so a client that is idle or reads slowly
// is heard. Where a proxy stands between, its machine is the one that answers.

const (
	// minProbe is TCP's shortest pause between two probes.
	minProbe = time.Second
	// minSilence is the shortest silence that says anything: probes may be lost.
	minSilence = 3 * minProbe
)

// probeFor has TCP probe the client often enough for a lease of this TTL.
func (s *session) probeFor(ttl time.Duration) {
	every := max(minProbe, (ttl / 3).Truncate(time.Second))
	if tcp, ok := s.raw.(*net.TCPConn); ok {
		_ = tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: every, Interval: every})
		probeFullWindows(tcp, every)
	}
}

// allowed is how long the lease may live from now on: nothing once the client has been
// silent for a TTL. Where nobody knows, it is the TTL.
func (s *session) allowed(ttl time.Duration) time.Duration {
	tcp, ok := s.raw.(*net.TCPConn)
	if !ok {
		return ttl // a Unix socket: it ends with its process
	}
	silent, known := silence(tcp)
	if !known {
		return ttl
	}
	return min(ttl, max(ttl, minSilence)-silent)
}
