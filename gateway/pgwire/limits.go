package pgwire

import (
	"errors"
	"net"
	"net/netip"

	"github.com/fencegate/fencegate/gateway/quota"
)

// errTooMany is the error for a client over a limit of connections.
var errTooMany = &fatalError{
	code: codeTooManyConnections, message: "sorry, too many clients already",
	hint: "The gateway's limit of connections, or of logins of one address at a time, is reached. Try again when others have ended.",
}

var errNoAnswer = errors.New("too many connections are being refused at once")

// refusers is how many connections beyond the limit may finish their startup, to receive an error, or to have their
// cancel request passed on.
const refusers = 16

// class is the kind of place that a connection has.
type class int

const (
	served  class = iota
	surplus       // over a limit; will be refused
)

// limits bound how many connections clients may have.
type limits struct {
	maxConnections, maxAddressLogins, maxUserConnections int
	proxies                                              []netip.Prefix

	connections quota.Quota[class]
	logins      quota.Quota[netip.Addr] // connections that have not logged in
	users       quota.Quota[string]     // sessions that have logged in
}

// place is what one connection occupies. Only the goroutine that serves the connection uses it.
type place struct {
	limits  *limits
	surplus bool // over a limit; will be refused

	leaveClass, leaveLogin, leaveUser func()
}

// take takes a place for a new connection. false: there is none, not even for a connection that will be refused.
func (l *limits) take(conn net.Conn) (p *place, ok bool) {
	none := func() {}
	p = &place{limits: l, leaveClass: none, leaveLogin: none, leaveUser: none}
	if leave, ok := l.connections.Take(served, l.maxConnections); ok {
		p.leaveClass = leave
		if p.countLogin(l.loginAddrOf(conn)) {
			return p, true
		}
	}
	return p, p.becomeSurplus()
}

// loginAddrOf returns the address under which a connection's login is counted. It is invalid for a Unix socket, and for
// a proxy, which has many clients.
func (l *limits) loginAddrOf(conn net.Conn) netip.Addr {
	tcp, ok := conn.(*net.TCPConn)
	if !ok || behindProxy(conn, l.proxies) {
		return netip.Addr{}
	}
	addr, _ := tcp.RemoteAddr().(*net.TCPAddr)
	return addr.AddrPort().Addr().Unmap().WithZone("")
}

// countLogin counts a connection that has not logged in under its address. It returns false if there are too many.
func (p *place) countLogin(addr netip.Addr) bool {
	if !addr.IsValid() {
		return true
	}
	leave, ok := p.limits.logins.Take(addr, p.limits.maxAddressLogins)
	if ok {
		p.leaveLogin = leave
	}
	return ok
}

func (p *place) becomeSurplus() bool {
	p.leaveClass()
	p.surplus = true
	leave, ok := p.limits.connections.Take(surplus, refusers)
	if ok {
		p.leaveClass = leave
	}
	return ok
}

// setAddr is countLogin for a client whose address was not known when its connection took its place. The place of a
// refused one serves another.
func (p *place) setAddr(addr netip.Addr) error {
	switch {
	case p.countLogin(addr):
		return nil
	case p.surplus || p.becomeSurplus():
		return errTooMany
	}
	return errNoAnswer // enough others get one
}

// logIn counts a session under its user once it has logged in. It returns false if there are too many. Counting earlier
// would let strangers lock out a user.
func (p *place) logIn(user string) bool {
	p.leaveLogin()
	leave, ok := p.limits.users.Take(user, p.limits.maxUserConnections)
	if ok {
		p.leaveUser = leave
	}
	return ok
}

// leave frees the place.
func (p *place) leave() {
	p.leaveClass()
	p.leaveLogin()
	p.leaveUser()
}
