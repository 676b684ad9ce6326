package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/internal/testenv/clockshim"
)

// Node is a Redis node with its own clock and persistence.
type Node struct {
	Name        string // "redis-1" …
	Addr        string // the node's own, without a relay
	Persistence redisserver.Persistence
	hash        string // the key of the lock's counters

	mu     sync.Mutex
	dir    string // its data, of which kept is a copy
	kept   string
	server *redisserver.Server
	clock  *clockshim.Clock
	frozen bool
	down   bool
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

func (c *Cluster) startNode(ctx context.Context, number int, shim *clockshim.Clock) (*Node, error) {
	name := fmt.Sprintf("redis-%d", number)
	modes := []redisserver.Persistence{redisserver.Always, redisserver.EverySec, redisserver.None}
	n := &Node{
		Name: name, Persistence: modes[(number-1+int(c.opts.Seed%3))%len(modes)],
		dir: filepath.Join(c.dir, name, "data"), kept: filepath.Join(c.dir, name, "kept"),
	}
	if err := os.MkdirAll(n.dir, 0o700); err != nil {
		return nil, err
	}
	var err error
	if n.clock, err = shim.In(filepath.Join(c.dir, name, "clock")); err != nil {
		return nil, err
	}
	n.server, err = redisserver.Start(ctx, redisserver.Config{
		Dir: n.dir, Env: n.clock.Env(), AppendOnly: n.Persistence, Patience: 30 * time.Second,
	})
	if err != nil {
		return nil, errors.Join(err, n.clock.Close())
	}
	n.Addr = n.server.Addr
	return n, nil
}

// Freeze stops the node (SIGSTOP).
func (n *Node) Freeze() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.down {
		return fmt.Errorf("%s does not run", n.Name)
	}
	n.frozen = true
	return n.server.Freeze()
}

// Thaw resumes it.
func (n *Node) Thaw() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.thaw()
}

func (n *Node) thaw() error {
	if n.down || !n.frozen {
		return nil
	}
	n.frozen = false
	return n.server.Thaw()
}

// Kill ends the node like kill -9. It stays down until [Node.Restart].
func (n *Node) Kill() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.kill()
}

func (n *Node) kill() error {
	n.down, n.frozen = true, false
	return n.server.Kill()
}

// Keep copies the node's current data, for a restart with [Older].
func (n *Node) Keep() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.down && !n.frozen { // copy between two writes
		if err := n.server.Freeze(); err != nil {
			return err
		}
		defer func() { _ = n.server.Thaw() }() // an error means that it has ended, which is noticed
	}
	return replace(n.kept, n.dir)
}

// replace makes a folder a copy of another.
func replace(to, from string) error {
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	return os.CopyFS(to, os.DirFS(from))
}

// Restart kills the node if it runs and starts it with the data.
func (n *Node) Restart(ctx context.Context, data Data) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.kill(); err != nil {
		return err
	}
	if data != Own {
		if err := n.change(data); err != nil {
			return err
		}
	}
	if err := n.server.Restart(ctx); err != nil {
		return err
	}
	n.down = false
	return nil
}

func (n *Node) change(data Data) error {
	if _, err := os.Stat(n.kept); data == Older && err == nil {
		return replace(n.dir, n.kept)
	}
	if err := os.RemoveAll(n.dir); err != nil {
		return err
	}
	return os.Mkdir(n.dir, 0o700)
}

// SetClock sets the offset of the node's wall clock.
func (n *Node) SetClock(d time.Duration) error { return n.clock.Set(d) }

// client connects to the node itself. The caller closes it.
func (n *Node) client() *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr: n.Addr, MaxRetries: -1, DialTimeout: time.Second, ReadTimeout: 2 * time.Second,
	})
}

// Flush removes a part of a running node's data.
func (n *Node) Flush(ctx context.Context, part Part) error {
	client := n.client()
	defer func() { _ = client.Close() }()
	switch part {
	case Hash:
		return client.Del(ctx, n.hash).Err()
	case Scripts:
		return client.ScriptFlush(ctx).Err()
	default:
		return client.FlushAll(ctx).Err()
	}
}

// Info reads a section of INFO, as name → value.
func (n *Node) Info(ctx context.Context, section string) (map[string]string, error) {
	client := n.client()
	defer func() { _ = client.Close() }()
	text, err := client.Info(ctx, section).Result()
	if err != nil {
		return nil, err
	}
	info := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			info[name] = value
		}
	}
	return info, nil
}

// Keys returns the node's number of keys.
func (n *Node) Keys(ctx context.Context) (int64, error) {
	client := n.client()
	defer func() { _ = client.Close() }()
	return client.DBSize(ctx).Result()
}

// heal starts or thaws the node and corrects its clock.
func (n *Node) heal(ctx context.Context) error {
	n.mu.Lock()
	err := errors.Join(n.clock.Set(0), n.thaw())
	down := n.down || !alive(n.server.Pid())
	n.mu.Unlock()
	if down {
		err = errors.Join(err, n.Restart(ctx, Own))
	}
	return err
}

func (n *Node) close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return errors.Join(n.server.Close(), n.clock.Close())
}
