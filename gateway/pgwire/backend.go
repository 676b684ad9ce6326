package pgwire

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"time"
)

// How long a session that the gateway ends may continue in PostgreSQL.
const (
	haltTimeout    = time.Second            // for all of halt
	cancelPatience = 200 * time.Millisecond // for a cancelled statement to end
	exitPatience   = 500 * time.Millisecond // for a terminated backend to exit
)

// backend is a session's connection to PostgreSQL.
type backend struct {
	conn      net.Conn
	way       Upstream // to its server
	key       []byte   // its process id and cancel key; set after the login
	upstreams *upstreams
}

// pid returns the backend's process id, as reported by PostgreSQL or a pooler; 0: not known.
func (b *backend) pid() uint32 {
	if len(b.key) < keyPidBytes {
		return 0
	}
	return binary.BigEndian.Uint32(b.key)
}

// isElsewhere reports whether the only server for sessions is now another one.
func (b *backend) isElsewhere() bool {
	home := b.upstreams.home.Load()
	return home != nil && b.way.elsewhere(*home)
}

// halt ends what PostgreSQL runs for the session and waits until it is over, so that its locks are free: closing the
// connection alone lets a statement continue. It cancels the statement, and terminates a backend that continues anyway.
// The outcome of the statement is unknown, like that of any whose answer was not read.
//
// The connection stays open until then, so that its port, and with it the backend's identity, still belongs to this
// session.
func (b *backend) halt(running bool, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), haltTimeout)
	defer cancel()
	_ = b.conn.SetWriteDeadline(time.Now()) // unblocks a goroutine that passes on the client's bytes
	if !running {
		_ = b.endWrites() // no more statements come
	} else {
		cancelled := make(chan struct{})
		defer func() { <-cancelled }()
		go func() {
			defer close(cancelled)
			defer func() { _ = b.endWrites() }() // after the cancel: a pooler that sees the end forgets the key
			if p := cancelRequest(b.key); p != nil {
				if err := b.upstreams.cancelAt(ctx, b.way, p); err != nil {
					log.Warn("failed to cancel a statement", "error", err)
				}
			}
		}()
	}
	if b.waitForEnd(cancelPatience) {
		return
	}
	local, ok := b.conn.LocalAddr().(*net.TCPAddr)
	if !ok || len(b.key) < keyPidBytes || b.upstreams.endBackend == nil || b.isElsewhere() {
		return
	}
	ended, err := b.upstreams.endBackend(ctx, b.pid(), local.Port)
	switch {
	case err != nil:
		log.Warn("failed to terminate a backend that ignored its cancel request", "error", err)
	case ended:
		b.waitForEnd(exitPatience)
	}
}

// endWrites half-closes a connection that is given up. It closes below TLS, whose close alert waits up to five seconds
// for a server that does not read.
func (b *backend) endWrites() error {
	if over, ok := b.conn.(interface{ NetConn() net.Conn }); ok {
		return closeWrite(over.NetConn())
	}
	return closeWrite(b.conn)
}

// waitForEnd reads what PostgreSQL still sends, and reports whether PostgreSQL closed the connection in time.
func (b *backend) waitForEnd(patience time.Duration) bool {
	_ = b.conn.SetReadDeadline(time.Now().Add(patience))
	_, err := io.Copy(io.Discard, b.conn)
	return !errors.Is(err, os.ErrDeadlineExceeded)
}
