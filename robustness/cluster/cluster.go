// Package cluster runs the whole product as processes on loopback: Redis nodes, a PostgreSQL with a streaming standby,
// gateways with a supervisor, and clients, with a relay for each connected pair.
//
// The guarantee: after [Start] every gateway serves leases. Each server keeps its address through all faults.
// [Cluster.Heal] brings everything back up. Nothing outlives this process, or [Cluster.Close].
//
//	c, err := cluster.Start(ctx, cluster.Options{Redis: 3, Gateways: 2, Program: program})
//	if err != nil {
//		return err
//	}
//	defer c.Close()
//	c.Nodes[0].Kill()
//	c.Net.Find("client-7", "gateway-1")[0].CutAfter(1)
//	lost, err := c.Failover(ctx, cluster.Failover{})
//	c.Heal(ctx)
//
// Names are those of the relays' ends: "redis-1", "postgres-a", "gateway-1", "client-7". A gateway's three ports have
// their own relays: "gateway-1/api", "gateway-1/pg", "gateway-1/s3". "blobs" is the S3 service that keeps the blobs, and
// "balancer/api" … are the ports of the balancer, if there are.
package cluster

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fencegate/fencegate/internal/child"
	"github.com/fencegate/fencegate/internal/stack"
	"github.com/fencegate/fencegate/robustness/relay"
)

// Options configure the cluster.
type Options struct {
	PostgresLeases bool     // leases come from PostgreSQL, and there are no Redis nodes
	Redis          int      // nodes: 1, 3 (default) or 5
	Gateways       int      // 2 (default) or 3
	Balancer       bool     // HAProxy stands in front of the gateways
	Async          bool     // the primary does not wait for its standby
	Program        string   // of fencegate, made by [Build]: required
	Client         string   // program of the clients, for [Cluster.StartClient]
	SQL            []string // run by the superuser after `migrate up`: judged.effects, then mutants
	Seed           uint64   // decides how each node persists its data
	BlobS3         string   // program of the S3 service for the blobs; "": they are files in a folder
	Disk           int64    // size of the blobs' own file system; default 256 MiB
	Python         string   // for clients; see client.Config
	PSQL           string   // for clients; see client.Config
}

// Settings of gateways and clients.
const (
	Bucket     = "robust"
	OnceBucket = "robust-once" // its objects are written once
	Rule       = "prefix:1"    // of both
	Token      = "robust-bearer-token"
	MaxTTL     = 3 * time.Second
)

// Cluster is a running cluster.
type Cluster struct {
	Net      relay.Net
	Nodes    []*Node
	Gateways []*Gateway
	Blobs    *Blobs // nil: the gateways keep the blobs in a folder
	Disk     *Disk  // nil: the blobs have no file system of their own

	opts     Options
	stack    *stack.Stack
	dir      string
	files    string   // the folder of the blobs
	blobEnv  []string // environment for processes that use them
	pg       [2]*Postgres
	balancer *stack.Ports // without relays; nil: there is none
	haproxy  *child.Process

	prefix   string     // of the keys in Redis; the database's own
	failing  sync.Mutex // one failover at a time
	attached bool       // there is a standby that can be promoted

	mu      sync.Mutex
	primary int
	clients []*Client
	scanned map[string]int // how much of a log Faulty has read
}

// Start starts everything, and returns when every gateway is ready.
func Start(ctx context.Context, opts Options) (*Cluster, error) {
	opts.Redis, opts.Gateways, opts.Disk = cmp.Or(opts.Redis, 3), cmp.Or(opts.Gateways, 2), cmp.Or(opts.Disk, 256<<20)
	program, err := filepath.Abs(opts.Program)
	if err != nil || opts.Program == "" {
		return nil, errors.Join(err, errors.New("Options.Program is required"))
	}
	opts.Program = program
	s, err := stack.New("")
	if err != nil {
		return nil, err
	}
	c := &Cluster{opts: opts, stack: s, dir: s.Dir, scanned: map[string]int{}}
	s.AtClose(c.Net.Close)
	for _, step := range []func(context.Context) error{c.startRedis, c.startPostgres, c.startBlobs, c.startGateways, c.startBalancer} {
		if err := step(ctx); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	return c, nil
}

// Close stops everything and removes its files. It may be called more than once.
func (c *Cluster) Close() error { return c.stack.Close() }

// Dir is the folder of all files; Close removes it.
func (c *Cluster) Dir() string { return c.dir }

// Async reports that the primary does not wait for its standby.
func (c *Cluster) Async() bool { return c.opts.Async }

// Balanced reports that there is a balancer.
func (c *Cluster) Balanced() bool { return c.balancer != nil }

// way returns a process's own address for a server: that of the relay between them.
func (c *Cluster) way(from, to, addr string) (string, error) {
	link, err := c.Net.Between(from, to, addr)
	if err != nil {
		return "", err
	}
	return link.Addr(), nil
}

// ways returns a process's own addresses for the nodes and for both PostgreSQL servers.
func (c *Cluster) ways(from string) (nodes, servers []string, err error) {
	for _, n := range c.Nodes {
		addr, err := c.way(from, n.Name, n.Addr)
		if err != nil {
			return nil, nil, err
		}
		nodes = append(nodes, addr)
	}
	for _, p := range c.pg {
		addr, err := c.way(from, p.Name, p.Addr)
		if err != nil {
			return nil, nil, err
		}
		servers = append(servers, addr)
	}
	return nodes, servers, nil
}

// Tool runs a fencegate command as the operator, without relays: its environment has the primary's address, the nodes,
// the blobs and the HTTP API's token. It returns the output. If the command failed, the error has it, too, from the
// beginning of a line.
func (c *Cluster) Tool(ctx context.Context, args ...string) (string, error) {
	var nodes []string
	for _, n := range c.Nodes {
		nodes = append(nodes, n.Addr)
	}
	cmd := exec.CommandContext(ctx, c.opts.Program, args...)
	cmd.Env = append(os.Environ(), "FENCEGATE_POSTGRES_URL="+c.Primary().URL(), "FENCEGATE_BLOBS="+c.blobsAt(""), "FENCEGATE_TOKEN="+Token)
	cmd.Env = append(cmd.Env, c.blobEnv...)
	if len(nodes) > 0 {
		cmd.Env = append(cmd.Env, "FENCEGATE_REDIS="+strings.Join(nodes, ","))
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		return "", err
	}
	adopted := child.Adopt(cmd.Process.Pid, syscall.SIGKILL)
	err := cmd.Wait()
	child.Disown(cmd.Process.Pid)
	if err = errors.Join(adopted, err); err != nil {
		err = fmt.Errorf("fencegate %s: %w\n%s", strings.Join(args, " "), err, bytes.TrimSpace(out.Bytes()))
	}
	return out.String(), err
}

// lastLines quotes the end of a log for an error.
func lastLines(file string) string {
	text, _ := os.ReadFile(file) // without it the error stands alone
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return "; its log ends: " + strings.Join(lines[max(0, len(lines)-5):], " | ")
}
