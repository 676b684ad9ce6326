package node

import (
	"context"
	"sync/atomic"
	"time"
)

// pingAfter is how long a subscription is silent before its node is asked for a sign of life.
const pingAfter = 3 * time.Second

// Subscribe makes a connection that receives what is published on a channel. signs counts the answers meanwhile.
func (n *Node) Subscribe(ctx context.Context, channel string, signs *atomic.Uint32) (*link, error) {
	k, err := dialLink(ctx, n.Server, n.Stall, signs)
	if err != nil {
		return nil, err
	}
	_ = k.Conn.SetDeadline(time.Now().Add(n.Stall))
	if _, err := k.do("SUBSCRIBE", channel); err != nil {
		_ = k.Conn.Close()
		return nil, err
	}
	_ = k.Conn.SetDeadline(time.Time{})
	return k, nil
}

// Pushed waits for the next message of a subscription. A node that is silent is asked whether it still is there, and
// has the given time to answer.
func (k *link) Pushed(within time.Duration) ([]value, error) {
	_ = k.Conn.SetReadDeadline(time.Now().Add(pingAfter))
	if _, err := k.in.Peek(1); isTimeout(err) {
		_ = k.Conn.SetDeadline(time.Now().Add(within))
		if _, err := k.Conn.Write(appendBulk(appendHead(nil, 1), "PING")); err != nil {
			return nil, err
		}
	}
	_ = k.Conn.SetReadDeadline(time.Now().Add(within))
	return k.reply()
}
