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

// How long a session that the gateway ends may continue in PostgreSQL.
const (
	haltPatience  = 200 * time.Millisecond // for a cancelled statement to end
	haltTimeout   = time.Second            // for all of halt
	haltFarewell  = 500 * time.Millisecond // for a terminated backend to exit
	keyPidBytes   = 4
	maxBackendKey = keyPidBytes + maxCancelKeyBytes
)

// halt ends what PostgreSQL runs for the session and waits until it is over, so that its locks are free: closing the
// connection alone lets a statement continue. It cancels the statement, and terminates a backend that continues anyway.
// The outcome of the statement is unknown, like that of any whose answer was not read.
//
// The upstream stays open until then, so that its port, and with it the backend's identity, still belongs to this
// session.
func (s *session) halt(upstream net.Conn, running bool) {
	ctx, cancel := context.WithTimeout(context.Background(), haltTimeout)
	defer cancel()
	_ = upstream.SetWriteDeadline(time.Now()) // unblocks a goroutine that passes on the client's bytes
	if !running {
		_ = endWrites(upstream) // no more statements come
	} else {
		cancelled := make(chan struct{})
		defer func() { <-cancelled }()
		go func() {
			defer close(cancelled)
			defer func() { _ = endWrites(upstream) }() // after the cancel: a pooler that sees the end forgets the key
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

// endWrites half-closes a connection that is given up. It closes below TLS, whose close alert waits up to five seconds
// for a server that does not read.
func endWrites(conn net.Conn) error {
	if over, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = over.NetConn()
	}
	return closeWrite(conn)
}

// endsWithin reads what PostgreSQL still sends, and reports whether PostgreSQL closed the connection in time.
func endsWithin(upstream net.Conn, patience time.Duration) bool {
	_ = upstream.SetReadDeadline(time.Now().Add(patience))
	_, err := io.Copy(io.Discard, upstream)
	return !errors.Is(err, os.ErrDeadlineExceeded)
}

// cancelRequest returns the packet that cancels the backend of this key; nil without a key.
func cancelRequest(key []byte) packet {
	if len(key) <= keyPidBytes {
		return nil
	}
	p := binary.BigEndian.AppendUint32(nil, uint32(minPacketBytes+len(key)))
	p = binary.BigEndian.AppendUint32(p, codeCancel)
	return append(p, key...)
}

// takeKey collects the body of BackendKeyData; rest begins with its first or next part.
func (s *serverStream) takeKey(rest []byte) {
	if s.skip <= maxBackendKey {
		s.key = append(s.key, rest[:min(int(s.skip), len(rest))]...)
	}
}
