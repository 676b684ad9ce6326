package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/internal/child"
	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/internal/stack"
	"github.com/fencegate/fencegate/internal/testenv/clockshim"
)

// Node is a Redis node with its own clock and persistence. It stays down after Kill until [Node.Restart].
type Node struct {
	process

	Addr string // the node's own, without a relay

	data, kept string // folders: its data, and a copy
	hash       string // the key of the lock's counters
}

// Data is the data with which a node starts.
type Data int

// The data that there may be.
const (
	Own   Data = iota // the data on its disk
	Older             // the copy of the last [Node.Keep]; nothing without one
	Empty
)

// Part is a part of its data that a running node loses.
type Part string

// The parts.
const (
	Everything Part = "everything"
	Hash       Part = "hash" // the lock's counters
	Scripts    Part = "scripts"
)

func (c *Cluster) startRedis(ctx context.Context) error {
	if c.opts.PostgresLeases {
		return nil
	}
	binary, err := redisserver.Find()
	if err != nil {
		return err
	}
	shim, err := clockshim.Compile(c.dir)
	if err != nil {
		return err
	}
	c.stack.AtClose(shim.Close)
	modes := [][]string{{"--appendonly", "yes", "--appendfsync", "always"}, {"--appendonly", "yes"}, {"--appendonly", "no"}}
	for i := range c.opts.Redis {
		n := &Node{}
		if n.Addr, err = stack.FreeAddr(); err != nil {
			return err
		}
		host, port, _ := net.SplitHostPort(n.Addr)
		name := fmt.Sprintf("redis-%d", i+1)
		n.data, n.kept = filepath.Join(c.dir, name, "data"), filepath.Join(c.dir, name, "kept")
		args := append([]string{"--bind", host, "--port", port, "--dir", n.data, "--save", ""}, modes[(i+int(c.opts.Seed%3))%3]...)
		if err := c.prepare(&n.process, name, shim, child.Spec{Path: binary, Args: args}); err != nil {
			return err
		}
		n.answers = func(ctx context.Context) error {
			return n.ask(func(client *redis.Client) error { return client.Ping(ctx).Err() })
		}
		if err := n.Restart(ctx, Empty); err != nil {
			return err
		}
		c.Nodes = append(c.Nodes, n)
	}
	return nil
}

// Keep copies the node's current data, for a restart with [Older].
func (n *Node) Keep() error {
	if n.Freeze() == nil { // copy between two writes
		defer func() { _ = n.Thaw() }()
	}
	return errors.Join(os.RemoveAll(n.kept), os.CopyFS(n.kept, os.DirFS(n.data)))
}

// Restart kills the node if it runs and starts it with the data.
func (n *Node) Restart(ctx context.Context, data Data) error {
	return n.restart(ctx, func() error {
		if data == Own {
			return nil
		}
		if err := errors.Join(os.RemoveAll(n.data), os.Mkdir(n.data, 0o700)); err != nil || data == Empty {
			return err
		}
		if err := os.CopyFS(n.data, os.DirFS(n.kept)); !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return nil
	})
}

// Flush removes a part of a running node's data.
func (n *Node) Flush(ctx context.Context, part Part) error {
	return n.ask(func(client *redis.Client) error {
		switch part {
		case Hash:
			return client.Del(ctx, n.hash).Err()
		case Scripts:
			return client.ScriptFlush(ctx).Err()
		default:
			return client.FlushAll(ctx).Err()
		}
	})
}

// ask connects to the node itself.
func (n *Node) ask(about func(*redis.Client) error) error {
	client := redis.NewClient(&redis.Options{Addr: n.Addr, MaxRetries: -1, DialTimeout: time.Second, ReadTimeout: 2 * time.Second})
	return errors.Join(about(client), client.Close())
}
