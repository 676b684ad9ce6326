package pgwire

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
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

// upstreams are the ways to PostgreSQL.
type upstreams struct {
	ways               []Upstream
	suitable           func(context.Context) ([]Upstream, error)                     // as in [Config]
	endBackend         func(ctx context.Context, pid uint32, port int) (bool, error) // as in [Config]
	timeout, keepAlive time.Duration
	cancels            *atomic.Int64 // cancel requests passed on

	askedForCertificate atomic.Bool              // PostgreSQL has asked for a client certificate
	home                atomic.Pointer[Upstream] // the only server for sessions, set by [Server.Moved]; nil: any
}

// dial connects to PostgreSQL: to the first suitable upstream that answers. The error is a [*fatalError].
func (u *upstreams) dial(ctx context.Context) (net.Conn, Upstream, error) {
	ways := u.ways
	if u.suitable != nil {
		bounded, cancel := context.WithTimeout(ctx, u.timeout)
		suitable, err := u.suitable(bounded)
		cancel()
		if err != nil {
			return nil, Upstream{}, unreachableError(ways, err)
		}
		ways = suitable
	}
	var failures []error
	for _, way := range ways {
		conn, err := u.dialOne(ctx, way)
		switch {
		case err == nil:
			return conn, way, nil
		case errors.Is(err, context.Canceled):
			return nil, Upstream{}, errShuttingDown
		}
		failures = append(failures, err)
	}
	return nil, Upstream{}, unreachableError(ways, errors.Join(failures...))
}

func (u *upstreams) dialOne(ctx context.Context, way Upstream) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, u.timeout)
	defer cancel()
	dialer := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: u.keepAlive}}
	conn, err := dialer.DialContext(ctx, way.Network, way.Addr)
	if err != nil || way.TLS == nil {
		return conn, err
	}
	giveUp := context.AfterFunc(ctx, func() { _ = conn.Close() })
	secure, err := upgrade(ctx, conn, withoutCertificates(way.TLS, func() { u.askedForCertificate.Store(true) }), way.DirectTLS)
	if !giveUp() {
		err = ctx.Err()
	}
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("TLS with %s: %w", way.Addr, err)
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

// unreachableError returns the error for a client: PostgreSQL is away, and at which address. Only the log gets the cause.
func unreachableError(ways []Upstream, cause error) error {
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

// cancelGrace is the time for the other upstreams once one has processed a cancel request for an unknown server: a
// client whose request is still on its way would have its next statement cancelled.
const cancelGrace = 250 * time.Millisecond

// cancel passes a cancel request on and waits until every upstream has processed it, which PostgreSQL shows by closing
// the connection. PostgreSQL's own keys identify the session, so any replica of the gateway can pass the request on,
// and every upstream may get it: a server that does not know the key ignores it. cancel calls processed as soon as the
// request is over at the session's server, at, because another host may hang; if that server is not known (nil),
// cancelGrace after one upstream has processed it.
func (u *upstreams) cancel(ctx context.Context, p packet, at *Upstream, processed func()) error {
	var sent sync.WaitGroup
	failures := make([]error, len(u.ways))
	for i, way := range u.ways {
		if slices.ContainsFunc(u.ways[:i], func(before Upstream) bool { return before.Addr == way.Addr }) {
			continue
		}
		sent.Go(func() {
			if failures[i] = u.cancelAt(ctx, way, p); failures[i] == nil {
				u.cancels.Add(1)
			}
			switch {
			case at == nil && failures[i] == nil:
				time.AfterFunc(cancelGrace, processed)
			case at != nil && !way.elsewhere(*at):
				processed()
			}
		})
	}
	sent.Wait()
	return errors.Join(failures...)
}

// cancelAt sends a cancel request to one upstream.
func (u *upstreams) cancelAt(ctx context.Context, way Upstream, p packet) error {
	conn, err := u.dialOne(ctx, way)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(u.timeout))
	if _, err := conn.Write(p); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })() // a stop does not wait for the answer
	_, _ = io.CopyN(io.Discard, conn, 1)
	return nil
}
