package pgwire

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

const (
	goodbyeTimeout = 2 * time.Second        // for the last bytes to a peer
	longLinger     = 2 * time.Second        // for a client that still sends after a refusal
	shortLinger    = 200 * time.Millisecond // for a client that is probably silent
	lingerBytes    = 256 << 10
)

// client is a client's connection, and who the client says it is.
type client struct {
	id     string // of its session
	began  time.Time
	logger *slog.Logger

	raw         net.Conn       // as accepted; deadlines and closing use it
	conn        net.Conn       // raw, or TLS over it; owned by the connection's goroutine until relaying starts
	proxiedAddr netip.AddrPort // the client's address, from a proxy
	who         startup        // once the startup packet is read
}

func newClient(conn net.Conn, keepAlive time.Duration, logger *slog.Logger) *client {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: keepAlive})
	}
	return &client{id: rand.Text(), began: time.Now(), logger: logger, raw: conn, conn: conn}
}

// address returns the client's address; Unix sockets have none.
func (c *client) address() string {
	addr := c.raw.RemoteAddr()
	switch {
	case c.proxiedAddr.IsValid():
		return c.proxiedAddr.String()
	case addr.Network() != "unix":
		return addr.String()
	}
	return "unix socket"
}

// log returns the logger for the session. Never log SQL or a startup option.
func (c *client) log() *slog.Logger {
	return c.logger.With("session", c.id, "client", c.address(), "user", c.who.user, "database", c.who.database)
}

// negotiate answers what may precede the startup packet, and returns that packet or a cancel request. It calls begins
// once the client has sent something. cfg nil: no TLS.
func (c *client) negotiate(ctx context.Context, cfg *tls.Config, begins func()) (packet, error) {
	for secured, gss := false, false; ; {
		var first [1]byte
		if _, err := io.ReadFull(c.conn, first[:]); err != nil {
			return nil, err
		}
		begins()
		if first[0] == tlsHandshake && !secured && cfg != nil {
			// A client with sslnegotiation=direct does not ask first.
			if err := c.startTLS(ctx, &prefixConn{Conn: c.raw, prefix: first[:]}, cfg, true); err != nil {
				return nil, err
			}
			secured = true
			continue
		}
		p, err := readPacket(c.conn, first[0])
		if err != nil {
			return nil, err
		}
		switch code := p.code(); {
		case code == codeSSL && len(p) == minPacketBytes && !secured:
			if cfg == nil {
				_, err = c.conn.Write([]byte{'N'})
			} else if _, err = c.conn.Write([]byte{'S'}); err == nil {
				err = c.startTLS(ctx, c.raw, cfg, false)
			}
			secured = true
		case code == codeGSSEnc && len(p) == minPacketBytes && !gss:
			_, err = c.conn.Write([]byte{'N'})
			gss = true
		default:
			return p, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

func (c *client) startTLS(ctx context.Context, conn net.Conn, cfg *tls.Config, direct bool) error {
	secure := tls.Server(conn, cfg)
	err := secure.HandshakeContext(ctx)
	switch {
	case err != nil && (ctx.Err() != nil || isGone(err)):
		return err
	case err != nil:
		return &handshakeError{err}
	case direct && secure.ConnectionState().NegotiatedProtocol != alpn:
		return &handshakeError{errors.New("TLS began without being asked for, and without ALPN postgresql")}
	}
	c.conn = secure
	return nil
}

// errNoCertificate is the error for a client without the required certificate.
var errNoCertificate = &fatalError{
	code: codeInvalidAuthorization, message: "connection requires a valid client certificate",
	hint: "Connect with TLS and a certificate of an authority that this gateway knows (sslmode=require, sslcert, sslkey).",
}

// checkCertificate refuses a client without a certificate if one is required, also on a plain connection.
func (c *client) checkCertificate(cfg *tls.Config) error {
	if cfg == nil || cfg.ClientAuth == tls.NoClientCert {
		return nil
	}
	if secure, ok := c.conn.(*tls.Conn); ok && len(secure.ConnectionState().PeerCertificates) > 0 {
		return nil
	}
	return errNoCertificate
}

// sendFatal sends the client the error that ends its session, and lingers. The caller ensures that the stream is
// between two messages, and closes the connection afterwards.
func (c *client) sendFatal(why *fatalError, patience time.Duration) {
	e := pgproto3.ErrorResponse{
		Severity: "FATAL", SeverityUnlocalized: "FATAL",
		Code: why.code, Message: why.message, Detail: why.detail, Hint: why.hint,
	}
	if b, err := e.Encode(nil); err == nil { // only a message of over 1 GB fails
		_ = c.conn.SetWriteDeadline(time.Now().Add(goodbyeTimeout))
		_, _ = c.conn.Write(b)
	}
	c.linger(patience)
}

// linger closes our half and reads what the client was sending, for a bounded time: closing a socket with unread bytes
// resets it, and the client could lose the FATAL that was just sent.
func (c *client) linger(patience time.Duration) {
	if closeWrite(c.conn) != nil {
		return
	}
	_ = c.conn.SetReadDeadline(time.Now().Add(patience))
	_, _ = io.CopyN(io.Discard, c.conn, lingerBytes)
}

// closeWrite closes our half of a connection; TCP, Unix sockets and TLS support that.
func closeWrite(conn net.Conn) error {
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return conn.Close()
}
