//go:build unix

package stack

import (
	"context"
	"crypto/rand"
	"fmt"

	"github.com/alicebob/miniredis/v2"

	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/lock"
)

// Redis are the nodes of one group.
type Redis []*redisserver.Server

// Redis starts n nodes without persistence, as processes.
func (s *Stack) Redis(ctx context.Context, n int) (Redis, error) {
	var nodes Redis
	for range n {
		node, err := redisserver.Start(ctx, redisserver.Config{})
		if err != nil {
			return nil, err
		}
		s.AtClose(node.Close)
		nodes = append(nodes, node)
	}
	return nodes, nil
}

// Addrs are the nodes' addresses.
func (r Redis) Addrs() (addrs []string) {
	for _, node := range r {
		addrs = append(addrs, node.Addr)
	}
	return addrs
}

// Nodes are the nodes for a Locker.
func (r Redis) Nodes() (nodes []lock.Node) {
	for _, node := range r {
		nodes = append(nodes, lock.Node{Addr: node.Addr})
	}
	return nodes
}

// embeddedRedis starts n nodes in this process, on loopback ports with a random password. They keep no data.
func (s *Stack) embeddedRedis(n int) (nodes []lock.Node, err error) {
	password := rand.Text()
	for i := range n {
		server := miniredis.NewMiniRedis()
		server.ClockTTL(true)
		server.RequireAuth(password)
		if err := server.StartAddr("127.0.0.1:0"); err != nil {
			return nil, fmt.Errorf("embedded Redis node %d: %w", i+1, err)
		}
		s.AtClose(func() error { server.Close(); return nil })
		nodes = append(nodes, lock.Node{Name: fmt.Sprintf("embedded-%d", i+1), Addr: server.Addr(), Password: password})
	}
	return nodes, nil
}
