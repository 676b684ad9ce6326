package fault

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/robustness/client"
	"github.com/fencegate/fencegate/robustness/cluster"
	"github.com/fencegate/fencegate/robustness/relay"
)

// World is the running cluster that faults affect.
type World interface {
	Clients() []Client
	Gateways() []Gateway
	Nodes() []Node
	Postgres() Postgres
	Blobs() Blobs // nil: the blobs are files in a folder
	// Links returns the relays. Their ends are named by kind: client…, gateway…, redis…, postgres…, blobs.
	Links() []*relay.Relay
	Disk() Disk // nil: the blobs have no file system of their own
	// Spin keeps n processes busy for d.
	Spin(ctx context.Context, n int, d time.Duration) error
	// Tool runs a fencegate command as the operator: its environment has the database, the nodes and the blobs. The
	// error contains the output.
	Tool(ctx context.Context, args ...string) error
	Bucket() Bucket
	Async() bool // the primary does not wait for its standby
}

// Bucket is the bucket that the clients write to, in its normal state.
type Bucket struct{ Name, Rule, Keep string }

// Process is one process. Its methods may be called at any time, in any state.
type Process interface {
	Name() string // for example "redis-2", unique in the world
	Freeze() error
	Thaw() error
}

// Client is a client process.
type Client interface {
	Process

	Number() int
	Kill() error
	Restart(ctx context.Context, work client.Order) error // starts it again, with the order
	SetClock(d time.Duration) error                       // the offset of its wall clock
}

// Gateway is a fencegate serve. A supervisor restarts it when it has ended.
type Gateway interface {
	Process

	Kill() error
	Stop(ctx context.Context) error  // sends SIGTERM, and returns when it has ended
	Ready(ctx context.Context) error // nil: /readyz reports ready
	SetClock(d time.Duration) error
	API() (url, token string)
}

// Node is a Redis node.
type Node interface {
	Process

	Kill() error
	Keep() error // copies its data, for a restart with Older
	Restart(ctx context.Context, data Data) error
	Flush(ctx context.Context, part Part) error
	SetClock(d time.Duration) error
	Admitted(ctx context.Context) error // nil: it grants leases
}

// Data is the data with which a node starts.
type Data = cluster.Data

// Part is a part of its data that a running node loses.
type Part = cluster.Part

// Postgres is a primary with a standby.
type Postgres interface {
	Kill() error                     // the primary, like a crash
	Start(ctx context.Context) error // returns when it answers
	Freeze() error
	Thaw() error
	FreezeStandby() error
	ThawStandby() error
	Restart(ctx context.Context, standby bool) error // an orderly restart, as for an upgrade
	// Failover follows the documented procedure and makes the old primary the new standby.
	Failover(ctx context.Context, how cluster.Failover) (cluster.Switch, error)
	CaughtUp(ctx context.Context) error               // waits for the standby
	Superuser(ctx context.Context) (*pgx.Conn, error) // to the primary, without a relay
}

// Blobs is the S3 service that keeps the blobs.
type Blobs interface {
	Process

	Kill() error
	Restart(ctx context.Context) error // returns when it answers
}

// Disk is the file system of the blobs.
type Disk interface {
	Fill(ctx context.Context, leave int64) error // leave: bytes that stay free
	Free() error
}
