package fault

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/robustness/client"
	"github.com/fencegate/fencegate/robustness/cluster"
	"github.com/fencegate/fencegate/robustness/relay"
)

// World is the running cluster that faults affect. It may have none of some parts.
type World interface {
	Clients() []Client
	Gateways() []Gateway
	Nodes() []Node
	Blobs() []Server // the S3 service that keeps the blobs
	Disks() []Disk   // the blobs' own file system
	Primary() Postgres
	Standby() Postgres
	// Links returns the relays. Their ends are named by kind: client…, gateway…, redis…, postgres…, blobs, balancer….
	Links() []*relay.Relay
	// Spin keeps n processes busy for d.
	Spin(ctx context.Context, n int, d time.Duration) error
	// Tool runs a fencegate command as the operator: its environment has the database, the nodes and the blobs. The
	// error contains the output.
	Tool(ctx context.Context, args ...string) (string, error)
	// Failover follows the documented procedure and makes the old primary the new standby.
	Failover(ctx context.Context, how cluster.Failover) (cluster.Switch, error)
	CaughtUp(ctx context.Context) error               // waits for the standby
	Superuser(ctx context.Context) (*pgx.Conn, error) // a session on the primary, without a relay
	Async() bool                                      // the primary does not wait for its standby
}

// Process is one process. Its methods may be called at any time, in any state.
type Process interface {
	ID() string // for example "redis-2", unique in the world
	Freeze() error
	Thaw() error
	Kill() error
}

// Client is a client process.
type Client interface {
	Process

	Number() int
	Restart(ctx context.Context, work client.Order) error // starts it again, with the order
	SetClock(d time.Duration) error                       // the offset of its wall clock
}

// Gateway is a fencegate serve. A supervisor restarts it when it has ended.
type Gateway interface {
	Process

	Stop(ctx context.Context) error  // sends SIGTERM, and returns when it has ended
	Ready(ctx context.Context) error // nil: /readyz reports ready
	SetClock(d time.Duration) error
	URL() string // of the HTTP API
}

// Node is a Redis node.
type Node interface {
	Process

	Keep() error // copies its data, for a restart with Older
	Restart(ctx context.Context, data cluster.Data) error
	Flush(ctx context.Context, part cluster.Part) error
	SetClock(d time.Duration) error
	Admitted(ctx context.Context) error // nil: it grants leases
}

// Server is another server. It stays down after Kill and Stop.
type Server interface {
	Process

	Start(ctx context.Context) error // returns when it answers
}

// Postgres is a PostgreSQL server.
type Postgres interface {
	Server

	Stop() error // in order, as for an upgrade
}

// Disk is a file system.
type Disk interface {
	ID() string
	Fill(ctx context.Context, leave int64) error // leave: bytes that stay free
	Free() error
}

// On returns a cluster as a World. The auditor, client 0, and its relays are not part of it.
func On(c *cluster.Cluster) World { return on{c} }

type on struct{ *cluster.Cluster }

func (o on) Clients() (all []Client) {
	for _, k := range o.Cluster.Clients() {
		if k.Number() != 0 {
			all = append(all, k)
		}
	}
	return all
}

func (o on) Gateways() (all []Gateway) {
	for _, g := range o.Cluster.Gateways {
		all = append(all, g)
	}
	return all
}

func (o on) Nodes() (all []Node) {
	for _, n := range o.Cluster.Nodes {
		all = append(all, onNode{n, o.Cluster})
	}
	return all
}

func (o on) Blobs() (all []Server) {
	if o.Cluster.Blobs != nil {
		all = append(all, o.Cluster.Blobs)
	}
	return all
}

func (o on) Disks() (all []Disk) {
	if o.Disk != nil {
		all = append(all, o.Disk)
	}
	return all
}

func (o on) Primary() Postgres { return o.Cluster.Primary() }
func (o on) Standby() Postgres { return o.Cluster.Standby() }

func (o on) Superuser(ctx context.Context) (*pgx.Conn, error) {
	return o.Cluster.Primary().Connect(ctx)
}

func (o on) Links() (all []*relay.Relay) {
	for _, r := range o.Net.Find("", "") {
		if r.From != "client-0" {
			all = append(all, r)
		}
	}
	return all
}

// Lacks returns the needs that the cluster does not meet.
func Lacks(c *cluster.Cluster) (lacks []Need) {
	for need, met := range map[Need]bool{
		NeedsDisk: c.Disk != nil, NeedsBlobs: c.Blobs != nil, NeedsRedis: len(c.Nodes) > 0, NeedsBalancer: c.Balanced(),
	} {
		if !met {
			lacks = append(lacks, need)
		}
	}
	return lacks
}

type onNode struct {
	*cluster.Node

	c *cluster.Cluster
}

// Admitted uses the operator's command, which also fails if other nodes are not admitted.
func (n onNode) Admitted(ctx context.Context) error {
	text, failed := n.c.Tool(ctx, "nodes", "status")
	var nodes []struct {
		Name     string  `json:"name"`
		Admitted bool    `json:"admitted"`
		Error    *string `json:"error"`
	}
	list := text[max(0, strings.IndexByte(text, '[')):]
	if err := json.NewDecoder(strings.NewReader(list)).Decode(&nodes); err != nil {
		return errors.Join(failed, fmt.Errorf("nodes status: %w", err))
	}
	for _, status := range nodes {
		switch {
		case status.Name != n.Addr:
		case status.Error != nil:
			return errors.New(*status.Error)
		case status.Admitted:
			return nil
		}
	}
	return errors.Join(failed, fmt.Errorf("nodes status: %s is not admitted", n.Addr))
}

var (
	_ World = on{}
	_ Node  = onNode{}
)
