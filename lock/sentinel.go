package lock

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"
)

// A node with Sentinels is the server that is the primary. A failover replaces it by another run, perhaps with older
// data, and so counts as the loss of the node; see reign.go. Sentinels close all connections to a server that they make
// a replica, so each reign begins with a new connection, and is checked then.

var (
	errNotPrimary = errors.New("the server that the Sentinels name is a replica")
	errNoMaster   = errors.New("no Sentinel knows a primary of that name")
)

func (n Node) watched() bool { return len(n.Sentinels) > 0 }

// Dial connects to the node's server. With Sentinels that is the primary named by the first of them that answers. It
// does not log in. ctx bounds it. Package lock uses it for its own connections; it is exported for clients that store
// other data on the node.
func (n Node) Dial(ctx context.Context) (net.Conn, error) {
	addr := n.Addr
	if n.watched() {
		var err error
		if addr, err = n.primary(ctx); err != nil {
			return nil, err
		}
	}
	return n.dial(ctx, addr)
}

func (n Node) dial(ctx context.Context, addr string) (net.Conn, error) {
	if n.Dialer != nil {
		return n.Dialer(ctx, network(addr), addr)
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, network(addr), addr)
	if err == nil && n.TLS != nil {
		conn = tls.Client(conn, tlsFor(n.TLS, addr))
	}
	return conn, err
}

func tlsFor(cfg *tls.Config, addr string) *tls.Config {
	if cfg.ServerName != "" {
		return cfg
	}
	own := cfg.Clone()
	own.ServerName, _, _ = net.SplitHostPort(addr)
	return own
}

// primary asks the Sentinels one after another.
func (n Node) primary(ctx context.Context) (string, error) {
	errs := make([]error, 0, len(n.Sentinels))
	for i, sentinel := range n.Sentinels {
		left := DefaultNodeTimeout * 4
		if end, ok := ctx.Deadline(); ok {
			left = time.Until(end) / time.Duration(len(n.Sentinels)-i+1) // the rest is for the primary
		}
		addr, err := n.ask(ctx, sentinel, left)
		if err == nil {
			return addr, nil
		}
		errs = append(errs, fmt.Errorf("sentinel %s: %w", sentinel, err))
	}
	return "", errors.Join(errs...)
}

func (n Node) ask(ctx context.Context, sentinel string, within time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	conn, err := n.dial(ctx, sentinel)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(within))
	k := &link{conn: conn, in: bufio.NewReader(conn)}
	if n.SentinelPassword != "" {
		if _, err := k.doSecret(n.SentinelPassword, "AUTH", cmp.Or(n.SentinelUsername, "default"), n.SentinelPassword); err != nil {
			return "", err
		}
	}
	vals, err := k.do("SENTINEL", "get-master-addr-by-name", n.MasterName)
	switch {
	case err != nil:
		return "", err
	case len(vals) != 2 || vals[0].text == "":
		return "", errNoMaster
	}
	return net.JoinHostPort(vals[0].text, vals[1].text), nil
}
