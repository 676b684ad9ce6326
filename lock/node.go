package lock

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strings"
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

// Node is one independent Redis (or Valkey) server. A replica that a failover would promote is not independent of its
// primary.
type Node struct {
	Name     string // for errors and Status; default: Addr, or MasterName
	Addr     string // host:port, or the path of a Unix socket
	Username string
	Password string
	// Credentials, if set, returns user name and password for each login and replaces the two fields above. It is for
	// passwords that change. Its error fails the login.
	Credentials func() (username, password string, err error)
	TLS         *tls.Config // nil: none; also for the Sentinels
	DB          int
	// Dialer, if set, connects to the server and its Sentinels and replaces net.Dialer and TLS. It returns a
	// connection that is ready for the first command. ctx bounds it.
	Dialer func(ctx context.Context, network, addr string) (net.Conn, error)

	// Durable declares that the server keeps everything that it acknowledged across each restart, and is never
	// restored from a copy: its append-only file is written with appendfsync always. It is for the only node of a
	// group, which is then admitted at once after a restart, because it still has its own locks. Config.Epochs is
	// required. Each admission checks the server's settings. The node is quarantined as without Durable if they are
	// different, if the epoch was raised in between, or if a fence stands above the node's counter.
	Durable bool

	// Sentinels, host:port each, replace Addr: the node is the primary that they call MasterName. A failover counts
	// as the loss of the node: it grants nothing until it is admitted again. The Sentinels' failover must not leave
	// two primaries that grant: set min-replicas-to-write to 1 or more, and min-replicas-max-lag to no more than the
	// Sentinels' down-after-milliseconds.
	Sentinels        []string
	MasterName       string
	SentinelUsername string
	SentinelPassword string // "": the Sentinels need none
}

// Login returns the user name and password for the node; a password of "" is none.
func (n Node) Login() (username, password string, err error) {
	if n.Credentials != nil {
		return n.Credentials()
	}
	return n.Username, n.Password, nil
}

// clientName is a holder's name as an argument of CLIENT SETNAME, which allows no blanks.
func clientName(holder string) string {
	return "fencegate:" + strings.Map(func(r rune) rune {
		if r <= ' ' || r > '~' {
			return '_'
		}
		return r
	}, holder)
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
