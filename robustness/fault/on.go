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

// On returns a cluster as a World. The auditor, client 0, and its relays are not part of it.
func On(c *cluster.Cluster) World { return on{c} }

type on struct{ c *cluster.Cluster }

func (o on) Clients() []Client {
	var all []Client
	for _, k := range o.c.Clients() {
		if k.Config.Number != auditor {
			all = append(all, onClient{k})
		}
	}
	return all
}

// auditor is the number of the client that reads what a round left.
const auditor = 0

func (o on) Gateways() []Gateway {
	var all []Gateway
	for _, g := range o.c.Gateways {
		all = append(all, onGateway{g})
	}
	return all
}

func (o on) Nodes() []Node {
	var all []Node
	for _, n := range o.c.Nodes {
		all = append(all, onNode{n, o.c})
	}
	return all
}

func (o on) Postgres() Postgres { return onPostgres(o) }

func (o on) Blobs() Blobs {
	if o.c.Blobs == nil {
		return nil
	}
	return onBlobs{o.c.Blobs}
}

func (o on) Links() []*relay.Relay {
	var all []*relay.Relay
	for _, r := range o.c.Net.Find("", "") {
		if r.From != "client-0" {
			all = append(all, r)
		}
	}
	return all
}

func (o on) Disk() Disk {
	if o.c.Disk == nil {
		return nil
	}
	return o.c.Disk
}

func (o on) Spin(ctx context.Context, n int, d time.Duration) error { return o.c.Spin(ctx, n, d) }

func (o on) Tool(ctx context.Context, args ...string) error {
	_, err := o.c.Tool(ctx, args...)
	return err
}

func (o on) Async() bool { return o.c.Async() }

func (o on) Bucket() Bucket { return Bucket{Name: cluster.Bucket, Rule: cluster.Rule, Keep: "none"} }

// Lacks returns the needs that the cluster does not meet.
func Lacks(c *cluster.Cluster) []Need {
	var lacks []Need
	if c.Disk == nil {
		lacks = append(lacks, NeedsDisk)
	}
	if c.Blobs == nil {
		lacks = append(lacks, NeedsBlobs)
	}
	return lacks
}

type onClient struct{ *cluster.Client }

func (k onClient) Name() string { return k.Client.Name }
func (k onClient) Number() int  { return k.Config.Number }

func (k onClient) Restart(ctx context.Context, work client.Order) error {
	if err := k.Client.Restart(ctx); err != nil {
		return err
	}
	_, err := k.Order(ctx, work, patience)
	return err
}

type onGateway struct{ *cluster.Gateway }

func (g onGateway) Name() string             { return g.Gateway.Name }
func (g onGateway) API() (url, token string) { return "http://" + g.Gateway.API, cluster.Token }

type onNode struct {
	*cluster.Node

	c *cluster.Cluster
}

func (n onNode) Name() string { return n.Node.Name }

// Admitted uses the operator's command.
func (n onNode) Admitted(ctx context.Context) error {
	text, err := n.c.Tool(ctx, "nodes", "status") // it also fails if other nodes are not admitted
	return admitted(text, n.Addr, err)
}

// admitted parses the output of nodes status for the node at addr.
func admitted(text, addr string, failed error) error {
	var nodes []struct {
		Name     string  `json:"name"`
		Admitted bool    `json:"admitted"`
		Error    *string `json:"error"`
	}
	list := text[max(0, strings.IndexByte(text, '[')):]
	if err := json.NewDecoder(strings.NewReader(list)).Decode(&nodes); err != nil {
		return errors.Join(failed, fmt.Errorf("nodes status: %w", err))
	}
	for _, n := range nodes {
		switch {
		case n.Name != addr:
		case n.Error != nil:
			return errors.New(*n.Error)
		case !n.Admitted:
			return fmt.Errorf("%s is not admitted", addr)
		default:
			return nil
		}
	}
	return errors.Join(failed, fmt.Errorf("nodes status does not know %s", addr))
}

type onBlobs struct{ *cluster.Blobs }

func (b onBlobs) Name() string { return b.Blobs.Name }

type onPostgres on

func (p onPostgres) Kill() error                     { return p.c.Primary().Kill() }
func (p onPostgres) Start(ctx context.Context) error { return p.c.Primary().Start(ctx) }
func (p onPostgres) Freeze() error                   { return p.c.Primary().Freeze() }
func (p onPostgres) Thaw() error                     { return p.c.Primary().Thaw() }
func (p onPostgres) FreezeStandby() error            { return p.c.Standby().Freeze() }
func (p onPostgres) ThawStandby() error              { return p.c.Standby().Thaw() }

func (p onPostgres) Restart(ctx context.Context, standby bool) error {
	server := p.c.Primary()
	if standby {
		server = p.c.Standby()
	}
	if err := server.Stop(); err != nil {
		return err
	}
	return server.Start(ctx)
}

func (p onPostgres) Failover(ctx context.Context, how cluster.Failover) (cluster.Switch, error) {
	return p.c.Failover(ctx, how)
}

func (p onPostgres) CaughtUp(ctx context.Context) error { return p.c.CaughtUp(ctx) }

func (p onPostgres) Superuser(ctx context.Context) (*pgx.Conn, error) {
	return p.c.Primary().Connect(ctx)
}

var (
	_ World    = on{}
	_ Client   = onClient{}
	_ Gateway  = onGateway{}
	_ Node     = onNode{}
	_ Postgres = onPostgres{}
	_ Blobs    = onBlobs{}
	_ Disk     = (*cluster.Disk)(nil)
)
