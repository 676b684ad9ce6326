package pgwire

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Upstream is one way to reach PostgreSQL.
type Upstream struct {
	// Network and Addr are as in [Config].
	Network, Addr string
	// TLS is nil for a plain connection. Its own certificates are never shown: they would let every client log in as
	// the roles that they name.
	TLS *tls.Config
	// DirectTLS starts with the handshake, as sslnegotiation=direct does; it needs PostgreSQL 17.
	DirectTLS bool
	// Server distinguishes servers that successively have the same address. "": not known.
	Server string
}

// elsewhere reports whether u and v lead to different servers, as far as is known.
func (u Upstream) elsewhere(v Upstream) bool {
	return u.Addr != v.Addr || u.Server != "" && v.Server != "" && u.Server != v.Server
}

// upstreams returns all ways to PostgreSQL in order.
func (c *Config) upstreams() []Upstream {
	first := Upstream{Network: c.Network, Addr: c.Addr, TLS: c.UpstreamTLS, DirectTLS: c.UpstreamDirectTLS}
	return append([]Upstream{first}, c.Fallbacks...)
}

// dial connects to PostgreSQL: to the first suitable upstream that answers. The error is a [*fatalError].
func (s *Server) dial(ctx context.Context) (net.Conn, Upstream, error) {
	ways := s.cfg.upstreams()
	if s.cfg.Suitable != nil {
		bounded, cancel := context.WithTimeout(ctx, s.cfg.DialTimeout)
		suitable, err := s.cfg.Suitable(bounded)
		cancel()
		if err != nil {
			return nil, Upstream{}, s.unreachable(ways, err)
		}
		ways = suitable
	}
	var failures []error
	for _, u := range ways {
		conn, err := s.dialOne(ctx, u)
		switch {
		case err == nil:
			return conn, u, nil
		case errors.Is(err, context.Canceled):
			return nil, Upstream{}, errShuttingDown
		}
		failures = append(failures, err)
	}
	return nil, Upstream{}, s.unreachable(ways, errors.Join(failures...))
}

func (s *Server) dialOne(ctx context.Context, u Upstream) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.DialTimeout)
	defer cancel()
	dialer := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: s.cfg.KeepAlive}}
	conn, err := dialer.DialContext(ctx, u.Network, u.Addr)
	if err != nil || u.TLS == nil {
		return conn, err
	}
	giveUp := context.AfterFunc(ctx, func() { _ = conn.Close() })
	secure, err := upgrade(ctx, conn, notOurs(u.TLS, func() { s.askedForCertificate.Store(true) }), u.DirectTLS)
	if !giveUp() {
		err = ctx.Err()
	}
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("TLS with %s: %w", u.Addr, err)
	}
	return secure, nil
}

// upgrade starts TLS with PostgreSQL, and fails without it. It asks first, unless directly is set.
func upgrade(ctx context.Context, conn net.Conn, cfg *tls.Config, directly bool) (net.Conn, error) {
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline)
	}
	if directly {
		cfg.NextProtos = []string{alpn}
	} else if err := askForTLS(conn); err != nil {
		return nil, err
	}
	secure := tls.Client(conn, cfg)
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	return secure, conn.SetDeadline(time.Time{})
}

func askForTLS(conn net.Conn) error {
	ask := binary.BigEndian.AppendUint32(nil, minPacketBytes)
	ask = binary.BigEndian.AppendUint32(ask, codeSSL)
	if _, err := conn.Write(ask); err != nil {
		return err
	}
	var answer [1]byte
	if _, err := io.ReadFull(conn, answer[:]); err != nil {
		return err
	}
	if answer[0] != 'S' {
		return errors.New("the server does not offer TLS")
	}
	return nil
}

// errShuttingDown is the error for a client that connects too late.
var errShuttingDown = &fatalError{code: codeCannotConnectNow, message: "the gateway is shutting down"}

// errTooMany is the error for a client over a limit of connections.
var errTooMany = &fatalError{
	code: codeTooManyConnections, message: "sorry, too many clients already",
	hint: "The gateway's limit of connections, or of logins of one address at a time, is reached. Try again when others have ended.",
}

var (
	errLoginTooLong = &fatalError{code: codeConnectionFailure, message: "the login took too long"}
	errStopping     = &fatalError{
		code: codeAdminShutdown, message: "terminating connection due to shutdown of the gateway",
		hint: "Connect again: another gateway, or this one after its restart, will serve you.",
	}
)

// unreachable returns the error for a client: PostgreSQL is away, and at which address. Only the log gets the cause.
func (s *Server) unreachable(ways []Upstream, cause error) error {
	return &fatalError{
		code:    codeConnectionFailure,
		message: "the gateway cannot reach PostgreSQL at " + addresses(ways),
		hint:    "Nothing was done. Try again when PostgreSQL is back.", cause: cause,
	}
}

// addresses lists each address once.
func addresses(ways []Upstream) string {
	var names []string
	for _, u := range ways {
		if !slices.Contains(names, u.Addr) {
			names = append(names, u.Addr)
		}
	}
	return strings.Join(names, ", ")
}

// cancelGrace is the time for the other upstreams once one has processed a cancel request for an unknown server: a client
// whose request is still on its way would have its next statement cancelled.
const cancelGrace = 250 * time.Millisecond

// cancel passes a cancel request on and waits until every upstream has processed it, which PostgreSQL shows by closing
// the connection. PostgreSQL's own keys identify the session, so any replica of the gateway can pass the request on, and
// every upstream may get it: a server that does not know the key ignores it. cancel calls processed as soon as the
// request is over at the session's server, because another host may hang; if that server is not known, cancelGrace after
// one upstream has processed it.
func (s *Server) cancel(ctx context.Context, p packet, processed func()) error {
	if !validCancel(p) {
		return errors.New("malformed cancel request")
	}
	at := s.serverOf(p)
	var sent sync.WaitGroup
	ways := s.cfg.upstreams()
	failures := make([]error, len(ways))
	for i, u := range ways {
		if slices.ContainsFunc(ways[:i], func(before Upstream) bool { return before.Addr == u.Addr }) {
			continue
		}
		sent.Go(func() {
			if failures[i] = s.cancelAt(ctx, u, p); failures[i] == nil {
				s.counters.cancels.Add(1)
			}
			switch {
			case at == nil && failures[i] == nil:
				time.AfterFunc(cancelGrace, processed)
			case at != nil && !u.elsewhere(*at):
				processed()
			}
		})
	}
	sent.Wait()
	return errors.Join(failures...)
}

// serverOf returns where the session is that a cancel request names: as recorded for an open session, otherwise the only
// server for sessions; nil: not known.
func (s *Server) serverOf(p packet) (at *Upstream) {
	at = s.home.Load()
	s.each(func(ss *session) {
		if ss.isOpen() && bytes.Equal(ss.backend, p[minPacketBytes:]) {
			at = &ss.way
		}
	})
	return at
}

// cancelAt sends a cancel request to one upstream.
func (s *Server) cancelAt(ctx context.Context, u Upstream, p packet) error {
	conn, err := s.dialOne(ctx, u)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(s.cfg.DialTimeout))
	if _, err := conn.Write(p); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })() // a stop does not wait for the answer
	_, _ = io.CopyN(io.Discard, conn, 1)
	return nil
}

// quote quotes a client's text for an error, bounded and on one line.
func quote(name string) string {
	const longest = 63 // PostgreSQL's limit for names
	if len(name) > longest {
		name = name[:longest] + "…"
	}
	return strconv.Quote(name)
}
