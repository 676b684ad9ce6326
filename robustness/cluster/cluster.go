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
// their own relays: "gateway-1/api", "gateway-1/pg", "gateway-1/s3". "blobs" is the S3 service that keeps the blobs, if
// there is one.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/child"
	"github.com/fencegate/fencegate/internal/testenv/clockshim"
	"github.com/fencegate/fencegate/robustness/relay"
)

// Options configure the cluster.
type Options struct {
	Redis    int       // nodes: 3 (default) or 5
	Gateways int       // 2 (default) or 3
	Async    bool      // the primary does not wait for its standby
	Program  string    // of fencegate, built with [ClockOverlay]: required
	Client   string    // program of the clients, for [Cluster.StartClient]
	SQL      []string  // run by the superuser after `migrate up`: judged.effects, then mutants
	Seed     uint64    // decides how each node persists its data
	BlobS3   string    // program of the S3 service for the blobs; "": they are files in a folder
	Disk     int64     // size of the blobs' own file system; default 256 MiB
	Python   string    // for clients; see client.Config
	PSQL     string    // for clients; see client.Config
	Log      io.Writer // for actions; default: none
}

// Logins of the guarded database, and other settings of gateways and clients.
const (
	WriterLogin  = "robust_writer"  // in fence_writer
	GatewayLogin = "robust_gateway" // in fence_gateway
	SQLLogin     = "robust_sql"     // in fence_writer, the gateways' own
	Bucket       = "robust"
	OnceBucket   = "robust-once" // its objects are written once
	Rule         = "prefix:1"    // of both
	Token        = "robust-bearer-token"
	MaxTTL       = 3 * time.Second

	password     = "robust-password"
	rootAccess   = "robust-root"
	rootSecret   = "robust-root-secret" //nolint:gosec // of a server that lives for a test
	masterKey    = "robust:4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f"
	nodePatience = "250ms" // of serve: the default of 50 ms is too short where two cores run thirty processes
)

// Cluster is a running cluster.
type Cluster struct {
	Net      *relay.Net
	Nodes    []*Node
	Gateways []*Gateway
	Blobs    *Blobs // nil: the gateways keep the blobs in a folder
	Disk     *Disk  // nil: the blobs have no file system of their own

	opts    Options
	log     *slog.Logger
	dir     string
	files   string   // the folder of the blobs
	blobEnv []string // environment for processes that use them
	shim    *clockshim.Clock
	pg      [2]*Postgres

	prefix   string     // of the keys in Redis; the database's own
	failing  sync.Mutex // one failover at a time
	attached bool       // there is a standby that can be promoted

	mu      sync.Mutex
	primary int
	clients []*Client
	starts  map[int]int // by client number
	scanned map[string]int64
	closed  bool
}

func (o *Options) defaults() error {
	if o.Redis == 0 {
		o.Redis = 3
	}
	if o.Gateways == 0 {
		o.Gateways = 2
	}
	if o.Disk == 0 {
		o.Disk = 256 << 20
	}
	if o.Log == nil {
		o.Log = io.Discard
	}
	if o.Program == "" {
		return errors.New("Options.Program is required")
	}
	var err error
	o.Program, err = filepath.Abs(o.Program)
	return err
}

// Start starts everything, and returns when every gateway is ready.
func Start(ctx context.Context, opts Options) (c *Cluster, err error) {
	if err := opts.defaults(); err != nil {
		return nil, err
	}
	c = &Cluster{
		opts: opts, Net: &relay.Net{}, starts: map[int]int{}, scanned: map[string]int64{},
		log: slog.New(slog.NewTextHandler(opts.Log, nil)),
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	if c.dir, err = os.MkdirTemp("", "fencegate-robust-"); err != nil {
		return c, err
	}
	if err = child.RemoveAtDeath(c.dir); err != nil {
		return c, err
	}
	if err = os.Chmod(c.dir, 0o711); err != nil { // PostgreSQL's user must traverse it
		return c, err
	}
	for _, step := range []func(context.Context) error{c.startRedis, c.startPostgres, c.startBlobs, c.startGateways} {
		if err = step(ctx); err != nil {
			return c, err
		}
	}
	return c, nil
}

// Dir is the folder of all files; Close removes it.
func (c *Cluster) Dir() string { return c.dir }

// Async reports that the primary does not wait for its standby.
func (c *Cluster) Async() bool { return c.opts.Async }

func (c *Cluster) startRedis(ctx context.Context) (err error) {
	dir := filepath.Join(c.dir, "shim")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if c.shim, err = clockshim.Compile(dir); err != nil {
		return err
	}
	for i := range c.opts.Redis {
		node, err := c.startNode(ctx, i+1, c.shim)
		if err != nil {
			return err
		}
		c.Nodes = append(c.Nodes, node)
	}
	return nil
}

const logins = `
CREATE ROLE robust_writer LOGIN PASSWORD 'robust-password' IN ROLE fence_writer;
CREATE ROLE robust_gateway LOGIN PASSWORD 'robust-password' IN ROLE fence_gateway;
CREATE ROLE robust_sql LOGIN PASSWORD 'robust-password' IN ROLE fence_writer;
ALTER ROLE robust_writer SET idle_in_transaction_session_timeout = '15s';
`

func (c *Cluster) startPostgres(ctx context.Context) (err error) {
	for i, name := range []string{"postgres-a", "postgres-b"} {
		if c.pg[i], err = c.newPostgres(name); err != nil {
			return err
		}
	}
	primary := c.Primary()
	if err := primary.start(ctx); err != nil {
		return err
	}
	database := primary.url
	primary.url = primary.server.URL("postgres")
	if err := primary.exec(ctx, "CREATE DATABASE "+Database); err != nil {
		return err
	}
	primary.url = database
	if _, err := c.Tool(ctx, "migrate", "up"); err != nil {
		return err
	}
	if err := c.learnPrefix(ctx, primary); err != nil {
		return err
	}
	if err := primary.exec(ctx, append([]string{logins}, c.opts.SQL...)...); err != nil {
		return err
	}
	if err := c.attach(ctx); err != nil {
		return err
	}
	c.attached = true
	return nil
}

// learnPrefix asks the database for its key prefix, as gateways do.
func (c *Cluster) learnPrefix(ctx context.Context, primary *Postgres) error {
	conn, err := primary.Connect(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if c.prefix, err = pgfence.KeyPrefix(conn)(ctx); err != nil {
		return err
	}
	for _, n := range c.Nodes {
		n.hash = c.prefix + ":h"
	}
	return nil
}

func (c *Cluster) startGateways(ctx context.Context) error {
	for i := range c.opts.Gateways {
		g, err := c.newGateway(i + 1)
		if err != nil {
			return err
		}
		c.Gateways = append(c.Gateways, g)
		if err := g.supervise(); err != nil {
			return err
		}
	}
	if err := c.ready(ctx); err != nil {
		return err
	}
	_, err := c.Tool(ctx, "buckets", "set", OnceBucket, "--gateway", "http://"+c.Gateways[0].API, "--rule", Rule, "--write-once", "1d")
	return err
}

// ready waits until every gateway is ready.
func (c *Cluster) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for _, g := range c.Gateways {
		err := until(ctx, 50*time.Millisecond, g.Name+" is ready", func() error { return g.Ready(ctx) })
		if err != nil {
			return fmt.Errorf("%w%s", err, lastLines(g.LogFile))
		}
	}
	return nil
}

// Close stops everything and removes its files. It may be called more than once.
func (c *Cluster) Close() error {
	c.mu.Lock()
	again, clients := c.closed, c.clients
	c.closed = true
	c.mu.Unlock()
	if again {
		return nil
	}
	var errs []error
	for _, client := range clients {
		errs = append(errs, client.close())
	}
	for _, g := range c.Gateways {
		errs = append(errs, g.close())
	}
	for _, p := range c.pg {
		if p != nil {
			errs = append(errs, p.Kill())
		}
	}
	for _, n := range c.Nodes {
		errs = append(errs, n.close())
	}
	if c.shim != nil {
		errs = append(errs, c.shim.Close())
	}
	errs = append(errs, c.Net.Close(), c.Blobs.close(), c.Disk.unmount())
	if c.dir != "" {
		errs = append(errs, os.RemoveAll(c.dir))
		child.Removed(c.dir)
	}
	return errors.Join(errs...)
}
