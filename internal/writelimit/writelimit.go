// Package writelimit bounds how long a peer may take no bytes of what an HTTP client sends. The limits of
// [net/http.Transport] begin only when a request was written whole, so a peer that stops reading, such as a frozen
// process, would hold its client without end.
package writelimit

import (
	"context"
	"net"
	"time"
)

// Dial is the type of [net/http.Transport.DialContext].
type Dial = func(ctx context.Context, network, addr string) (net.Conn, error)

// Within returns dial with connections on each of which a Write fails after limit. The error is a timeout, and the
// connection can't be used any more.
func Within(limit time.Duration, dial Dial) Dial {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &conn{c, limit}, nil
	}
}

type conn struct {
	net.Conn
	limit time.Duration
}

func (c *conn) Write(b []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(c.limit)); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}
