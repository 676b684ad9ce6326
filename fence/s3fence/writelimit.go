package s3fence

import (
	"context"
	"net"
	"time"
)

// writesWithin returns dial with connections on each of which a Write fails after limit. The error is a timeout, and the
// connection can't be used any more. The limits of [net/http.Transport] begin only when a request was written whole, so a
// peer that stops reading, such as a frozen process, would hold its client without end.
func writesWithin(limit time.Duration, dial dialContext) dialContext {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &limitedConn{c, limit}, nil
	}
}

// dialContext is the type of [net/http.Transport.DialContext].
type dialContext = func(ctx context.Context, network, addr string) (net.Conn, error)

type limitedConn struct {
	net.Conn
	limit time.Duration
}

func (c *limitedConn) Write(b []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(c.limit)); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}
