package pgwire

import (
	"context"
	"net"
	"net/netip"
	"time"
)

// loginAddrOf returns the address under which a connection's login is counted. It is invalid for a Unix socket, and for
// a proxy, which has many clients.
func (s *Server) loginAddrOf(conn net.Conn) netip.Addr {
	tcp, ok := conn.(*net.TCPConn)
	if !ok || s.cfg.behindProxy(conn) {
		return netip.Addr{}
	}
	addr, _ := tcp.RemoteAddr().(*net.TCPAddr)
	return addr.AddrPort().Addr().Unmap().WithZone("")
}

// countLogin counts a connection that has not logged in under its address. It returns false if there are too many. The
// caller holds s.mu.
func (s *Server) countLogin(ss *session, addr netip.Addr) bool {
	if !addr.IsValid() {
		return true
	}
	if s.ofAddr[addr] >= s.cfg.MaxAddressLogins {
		return false
	}
	s.ofAddr[addr]++
	ss.loginAddr = addr
	return true
}

// uncountLogin undoes countLogin. The caller holds s.mu.
func (s *Server) uncountLogin(ss *session) {
	if !ss.loginAddr.IsValid() {
		return
	}
	if s.ofAddr[ss.loginAddr]--; s.ofAddr[ss.loginAddr] == 0 {
		delete(s.ofAddr, ss.loginAddr)
	}
	ss.loginAddr = netip.Addr{}
}

// reserve counts a session under its user once it has logged in. It returns false if there are too many. Counting
// earlier would let strangers lock out a user.
func (s *Server) reserve(ss *session) bool {
	user := truncated(ss.who.user)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.uncountLogin(ss)
	if limit := s.cfg.MaxUserConnections; limit > 0 && s.ofUser[user] >= limit {
		return false
	}
	s.ofUser[user]++
	ss.reserved = true
	return true
}

// forget undoes reserve, and adds the session's traffic to the total.
func (s *Server) forget(ss *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tally(ss)
	if !ss.reserved {
		return
	}
	user := truncated(ss.who.user)
	if s.ofUser[user]--; s.ofUser[user] == 0 {
		delete(s.ofUser, user)
	}
}

// refused counts a refusal.
func (s *Server) refused(why *fatalError) {
	s.counters.refused.Add(1)
	s.cfg.Metrics.Refused(why.code)
}

var (
	errIdle = &fatalError{
		code: codeIdleSession, message: "terminating connection due to the gateway's idle-session timeout",
		hint: "Connect again; keep a pool's connections shorter than the timeout.",
	}
	errIdleInTransaction = &fatalError{
		code: codeIdleInTransaction, message: "terminating connection due to the gateway's idle-in-transaction timeout",
		hint: "The transaction is rolled back. End transactions before you wait for anything.",
	}
)

// errSlowClient rarely reaches the client, whose stream is usually inside a message.
var errSlowClient = &fatalError{
	code: codeConnectionFailure, message: "terminating connection: the client neither read nor sent anything for the gateway's slow-client timeout",
	hint: "Read results as they come, or fetch them in portions.",
}

// looksPerTimeout is how many checks fall into an idle timeout: a session ends late by at most that fraction.
const looksPerTimeout = 16

// watchIdle ends sessions that are idle for too long, until ctx ends. Periodic checks spare the data path reading the
// clock.
func (s *Server) watchIdle(ctx context.Context) {
	var shortest time.Duration
	for _, t := range []time.Duration{s.cfg.IdleTimeout, s.cfg.IdleInTransactionTimeout, s.cfg.SlowClientTimeout} {
		if t > 0 && (shortest == 0 || t < shortest) {
			shortest = t
		}
	}
	if shortest == 0 {
		return
	}
	tick := time.NewTicker(max(shortest/looksPerTimeout, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			s.each(func(ss *session) { ss.endIfIdle(now) })
		}
	}
}

// endIfIdle ends the session if nothing has passed within its limit.
func (s *session) endIfIdle(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase != open {
		return
	}
	if s.moves != s.movesSeen || s.still.IsZero() {
		s.movesSeen, s.still = s.moves, now
		return
	}
	var limit time.Duration
	why := errIdle
	switch waitsForClient := s.toClientBusy.Load() || s.inMessage && !s.toServerBusy.Load(); {
	case waitsForClient:
		limit, why = s.srv.cfg.SlowClientTimeout, errSlowClient
	case s.quiet == 'I':
		limit = s.srv.cfg.IdleTimeout
	case s.quiet != 0:
		limit, why = s.srv.cfg.IdleInTransactionTimeout, errIdleInTransaction
	}
	if limit > 0 && now.Sub(s.still) >= limit {
		s.cutLocked(why)
	}
}
