package lock

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/lock/internal/node"
)

// NodesOf describes the servers of existing go-redis clients, one node for each: address, database, credentials, TLS
// and dialer. A Locker makes its own connections, so the clients' pools, retries, timeouts and hooks are not used,
// and they may be closed. A client of a Redis Cluster or a Ring is refused, and so is one of Sentinels: describe
// those by [Node]. The error is a [*fence.InvalidError], or [ErrCluster].
func NodesOf(clients ...redis.UniversalClient) ([]Node, error) {
	nodes := make([]Node, len(clients))
	for i, c := range clients {
		node, err := nodeOf(c)
		if err != nil {
			return nil, fmt.Errorf("redis client %d: %w", i+1, err)
		}
		nodes[i] = node
	}
	return nodes, nil
}

// failoverAddr is the address that go-redis gives to a client of Sentinels.
const failoverAddr = "FailoverClient"

// credentialsTimeout bounds a provider of credentials that takes a context.
const credentialsTimeout = 5 * time.Second

// dialWithin calls the client's dialer, bounded by ctx: go-redis' dialer ignores ctx with TLS. A connection that
// comes too late is closed.
func dialWithin(ctx context.Context, o *redis.Options) (net.Conn, error) {
	type dialed struct {
		conn net.Conn
		err  error
	}
	out := make(chan dialed, 1)
	go func() {
		conn, err := o.Dialer(ctx, o.Network, o.Addr)
		out <- dialed{conn, err}
	}()
	select {
	case d := <-out:
		return d.conn, d.err
	case <-ctx.Done():
		go func() {
			if d := <-out; d.err == nil {
				_ = d.conn.Close()
			}
		}()
		return nil, context.Cause(ctx)
	}
}

func nodeOf(client redis.UniversalClient) (Node, error) {
	c, single := client.(*redis.Client)
	_, cluster := client.(*redis.ClusterClient)
	switch {
	case cluster:
		return Node{}, ErrCluster
	case !single || c == nil:
		return Node{}, &fence.InvalidError{Field: "client", Reason: fmt.Sprintf("is a %T; only a *redis.Client of one server is a node", client)}
	}
	o := c.Options()
	switch {
	case o.Addr == failoverAddr:
		return Node{}, &fence.InvalidError{Field: "client", Reason: "asks Sentinels: give Node{Sentinels: …, MasterName: …}, which counts a failover as the loss of the node"}
	case o.StreamingCredentialsProvider != nil:
		return Node{}, &fence.InvalidError{Field: "client", Reason: "has a StreamingCredentialsProvider: give Node{Credentials: …}, which is asked before each login"}
	}
	n := Node{
		Addr: o.Addr, DB: o.DB, Username: o.Username, Password: o.Password,
		Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) { return dialWithin(ctx, o) }, // the dialer does TLS
	}
	switch {
	case o.CredentialsProviderContext != nil:
		n.Credentials = func() (string, string, error) {
			ctx, cancel := context.WithTimeout(context.Background(), credentialsTimeout)
			defer cancel()
			return o.CredentialsProviderContext(ctx)
		}
	case o.CredentialsProvider != nil:
		n.Credentials = func() (string, string, error) {
			username, password := o.CredentialsProvider()
			return username, password, nil
		}
	}
	return n, nil
}

func (n Node) watched() bool { return len(n.Sentinels) > 0 }

// Dial connects to the node's server. With Sentinels that is the primary named by the first of them that answers. It
// does not log in. ctx bounds it. Package lock uses it for its own connections; it is exported for clients that store
// other data on the node.
func (n Node) Dial(ctx context.Context) (net.Conn, error) {
	addr := n.Addr
	if n.watched() {
		var err error
		asked := node.Sentinels{
			Addrs: n.Sentinels, Master: n.MasterName, Username: n.SentinelUsername, Password: n.SentinelPassword, Dial: n.dial,
		}
		if addr, err = asked.Primary(ctx); err != nil {
			return nil, err
		}
	}
	return n.dial(ctx, addr)
}

func (n Node) dial(ctx context.Context, addr string) (net.Conn, error) {
	if n.Dialer != nil {
		return n.Dialer(ctx, node.Network(addr), addr)
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, node.Network(addr), addr)
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
