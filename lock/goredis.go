package lock

import (
	"context"
	"fmt"
	"net"

	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/fence"
)

// NodesOf describes the servers of go-redis clients that a program has already, one node for
// each: address, database, credentials, TLS and dialer. A Locker makes connections of its
// own, so the clients' pools, retries, time limits and hooks do not count, and they may be
// closed. A client of a Redis Cluster or a Ring is refused, and one of Sentinels: name those
// by [Node]. The error is a [*fence.InvalidError], or [ErrCluster].
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

// failoverAddr is what go-redis names the address of a client that asks Sentinels.
const failoverAddr = "FailoverClient"

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
		Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) { return o.Dialer(ctx, o.Network, o.Addr) }, // TLS is its matter
	}
	switch {
	case o.CredentialsProviderContext != nil:
		n.Credentials = func() (string, string, error) { return o.CredentialsProviderContext(context.Background()) }
	case o.CredentialsProvider != nil:
		n.Credentials = func() (string, string, error) {
			username, password := o.CredentialsProvider()
			return username, password, nil
		}
	}
	return n, nil
}
