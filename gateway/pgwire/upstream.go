package pgwire

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"
)

// dial connects to PostgreSQL. The error is a [*fatalError].
func (s *Server) dial(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.DialTimeout)
	defer cancel()
	dialer := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: s.cfg.KeepAlive}}
	conn, err := dialer.DialContext(ctx, s.cfg.Network, s.cfg.Addr)
	if errors.Is(err, context.Canceled) {
		return nil, errShuttingDown
	}
	if err != nil {
		return nil, s.unreachable(err)
	}
	if s.cfg.UpstreamTLS == nil {
		return conn, nil
	}
	secure, err := upgrade(ctx, conn, s.cfg.UpstreamTLS)
	if err != nil {
		_ = conn.Close()
		return nil, s.unreachable(err)
	}
	return secure, nil
}

// upgrade asks PostgreSQL for TLS and insists on it.
func upgrade(ctx context.Context, conn net.Conn, cfg *tls.Config) (net.Conn, error) {
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline)
	}
	ask := binary.BigEndian.AppendUint32(nil, minPacketBytes)
	ask = binary.BigEndian.AppendUint32(ask, codeSSL)
	if _, err := conn.Write(ask); err != nil {
		return nil, err
	}
	var answer [1]byte
	if _, err := io.ReadFull(conn, answer[:]); err != nil {
		return nil, err
	}
	if answer[0] != 'S' {
		return nil, errors.New("the server does not offer TLS")
	}
	secure := tls.Client(conn, cfg)
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	return secure, conn.SetDeadline(time.Time{})
}

// errShuttingDown is what a client is told that comes too late.
var errShuttingDown = &fatalError{code: codeCannotConnectNow, message: "the gateway is shutting down"}

// errTooMany is what a client is told that is over the limit of connections.
var errTooMany = &fatalError{
	code: codeTooManyConnections, message: "sorry, too many clients already",
	hint: "The gateway's limit of connections is reached. Try again when others have ended.",
}

var (
	errLoginTooLong = &fatalError{code: codeConnectionFailure, message: "the login took too long"}
	errStopping     = &fatalError{
		code: codeAdminShutdown, message: "terminating connection due to shutdown of the gateway",
		hint: "Connect again: another gateway, or this one after its restart, will serve you.",
	}
)

// unreachable is what a client is told: that PostgreSQL is away, and which
// one; why, only the log says.
func (s *Server) unreachable(cause error) error {
	return &fatalError{
		code:    codeConnectionFailure,
		message: fmt.Sprintf("the gateway cannot reach PostgreSQL at %s", s.cfg.Addr),
		hint:    "Nothing was done. Try again when PostgreSQL is back.", cause: cause,
	}
}

// cancel passes a cancel request on and waits until PostgreSQL has taken it,
// which it shows by closing the connection. PostgreSQL's own keys identify the
// session, so that any replica of the gateway can carry the request.
func (s *Server) cancel(ctx context.Context, p packet) error {
	if !validCancel(p) {
		return errors.New("malformed cancel request")
	}
	conn, err := s.dial(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(s.cfg.DialTimeout))
	if _, err := conn.Write(p); err != nil {
		return err
	}
	s.counters.cancels.Add(1)
	_, _ = io.CopyN(io.Discard, conn, 1)
	return nil
}

// quote shows a client's own text back to it, bounded and on one line.
func quote(name string) string {
	const longest = 63 // PostgreSQL's own limit for names
	if len(name) > longest {
		name = name[:longest] + "…"
	}
	return strconv.Quote(name)
}
