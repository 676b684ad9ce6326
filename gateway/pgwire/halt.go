package pgwire

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"time"
)

// How long a session that the gateway ends may go on in PostgreSQL.
const (
	haltPatience  = 200 * time.Millisecond // with a statement that was told to end
	haltTimeout   = time.Second            // for the whole of it
	haltFarewell  = 500 * time.Millisecond // for a backend that was terminated to go
	keyPidBytes   = 4
	maxBackendKey = keyPidBytes + maxCancelKeyBytes
)

// halt ends what PostgreSQL does for the session and waits until it is over, so that its
// locks are free: a connection that is merely closed lets a statement run on. The
// statement is cancelled; a backend that goes on all the same is terminated. What became
// of the statement is unknown, as of each whose answer nobody waited for.
//
// The upstream stays open until then, which keeps its port, and so the backend's
// identity, this session's.
func (s *session) halt(upstream net.Conn, running bool) {
	ctx, cancel := context.WithTimeout(context.Background(), haltTimeout)
	defer cancel()
	_ = upstream.SetWriteDeadline(time.Now()) // whoever waits to pass on what the client sent
	if !running {
		_ = endWrites(upstream) // no more statements come
	} else {
		cancelled := make(chan struct{})
		defer func() { <-cancelled }()
		go func() {
			defer close(cancelled)
			defer func() { _ = endWrites(upstream) }() // a pooler that sees the end first forgets the session, and what to cancel
			if p := cancelRequest(s.backend); p != nil {
				if err := s.srv.cancelAt(ctx, s.way, p); err != nil {
					s.log().Warn("failed to cancel a statement", "error", err)
				}
			}
		}()
	}
	if endsWithin(upstream, haltPatience) {
		return
	}
	local, ok := upstream.LocalAddr().(*net.TCPAddr)
	if home := s.srv.home.Load(); !ok || len(s.backend) < keyPidBytes || s.srv.cfg.EndBackend == nil || home != nil && s.way.elsewhere(*home) {
		return
	}
	ended, err := s.srv.cfg.EndBackend(ctx, binary.BigEndian.Uint32(s.backend), local.Port)
	switch {
	case err != nil:
		s.log().Warn("failed to terminate a backend that ignored its cancel request", "error", err)
	case ended:
		endsWithin(upstream, haltFarewell)
	}
}

// endWrites half-closes a connection that is given up. Below TLS, whose own farewell waits up to five seconds for a server
// that does not read.
func endWrites(conn net.Conn) error {
	if over, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = over.NetConn()
	}
	return closeWrite(conn)
}

// endsWithin reads what PostgreSQL still sends, and reports whether it ended the
// connection in time.
func endsWithin(upstream net.Conn, patience time.Duration) bool {
	_ = upstream.SetReadDeadline(time.Now().Add(patience))
	_, err := io.Copy(io.Discard, upstream)
	return !errors.Is(err, os.ErrDeadlineExceeded)
}

// cancelRequest is the packet that cancels what the backend of this key runs; nil without
// a key.
func cancelRequest(key []byte) packet {
	if len(key) <= keyPidBytes {
		return nil
	}
	p := binary.BigEndian.AppendUint32(nil, uint32(minPacketBytes+len(key)))
	p = binary.BigEndian.AppendUint32(p, codeCancel)
	return append(p, key...)
}

// takeKey keeps the body of BackendKeyData, of which rest holds the beginning, or the next
// part.
func (s *serverStream) takeKey(rest []byte) {
	if s.skip <= maxBackendKey {
		s.key = append(s.key, rest[:min(int(s.skip), len(rest))]...)
	}
}
