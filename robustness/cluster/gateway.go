package cluster

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/fencegate/fencegate/internal/child"
	"github.com/fencegate/fencegate/internal/stack"
)

// Gateway is a fencegate serve with a supervisor, which restarts it 100 ms after any end.
type Gateway struct {
	process
	stack.Ports // without a relay

	served *stack.GatewayProcess // its files; the supervisor has the process
	ended  sync.WaitGroup
	quit   chan struct{}
}

// serve are the gateways' flags besides their addresses and files.
var serve = []string{
	"--node-timeout", "250ms", // the default of 50 ms is too short where two cores run thirty processes
	"--max-ttl", MaxTTL.String(), "--drain-timeout", "5s",
	"--pg-login-timeout", "10s", "--pg-idle-in-transaction-timeout", "15s", "--pg-slow-client-timeout", "15s",
	"--bucket", Bucket + "=" + Rule, "--sweep-grace", "10s", "--s3-stall-timeout", "15s",
}

// startGateways starts the gateways, each with its own relays to PostgreSQL, Redis and an S3 service.
func (c *Cluster) startGateways(ctx context.Context) error {
	key := stack.NewMasterKey()
	for i := range c.opts.Gateways {
		name := fmt.Sprintf("gateway-%d", i+1)
		nodes, servers, err := c.ways(name)
		if err != nil {
			return err
		}
		blobs := c.blobsAt("")
		if c.Blobs != nil {
			addr, err := c.way(name, c.Blobs.Name, c.Blobs.Addr)
			if err != nil {
				return err
			}
			blobs = c.blobsAt(addr)
		}
		g := &Gateway{quit: make(chan struct{})}
		g.served, err = c.stack.Prepare(ctx, stack.GatewayConfig{ //nolint:gosec // the secret of a server that lives for a run
			Name: name, Program: c.opts.Program, URL: address(stack.Gateway, servers...), SQLURL: address(stack.SQL, servers...),
			Redis: nodes, MasterKey: key, Token: Token, S3Secret: "robust-root-secret",
			Flags: append([]string{"--blobs", blobs, "--pg-proxy-from", balancerHost + "/32"}, serve...), Env: append([]string{"TZ=UTC"}, c.blobEnv...),
		})
		if err != nil {
			return err
		}
		g.Ports = g.served.Ports
		if err := c.prepare(&g.process, name, ownClock, g.served.Spec); err != nil {
			return err
		}
		proc, err := g.start(nil, nil)
		if err != nil {
			return err
		}
		g.ended.Go(func() { g.supervise(proc) })
		c.stack.AtClose(func() error { close(g.quit); g.ended.Wait(); return nil })
		c.Gateways = append(c.Gateways, g)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for _, g := range c.Gateways {
		if err := stack.Until(ctx, g.Name+" is ready", g.Ready); err != nil {
			return fmt.Errorf("%w%s", err, lastLines(g.LogFile))
		}
	}
	_, err := c.Tool(ctx, "buckets", "set", OnceBucket, "--gateway", c.Gateways[0].URL(), "--rule", Rule, "--write-once", "1d")
	return err
}

// restartAfter is the supervisor's delay, as systemd's default.
const restartAfter = 100 * time.Millisecond

func (g *Gateway) supervise(proc *child.Process) {
	for {
		select {
		case <-proc.Done():
		case <-g.quit:
			return
		}
		g.mu.Lock()
		g.noteEnd()
		g.mu.Unlock()
		for again := false; !again; {
			select {
			case <-time.After(restartAfter):
			case <-g.quit:
				return
			}
			next, err := g.start(nil, nil)
			if again = err == nil; again {
				proc = next
			}
		}
	}
}

// Stop sends SIGTERM, and returns when the process has ended. The supervisor restarts it.
func (g *Gateway) Stop(ctx context.Context) error {
	proc := g.expect()
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGCONT} {
		_ = proc.Signal(sig) // it may have ended
	}
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second) // longer than serve's drain timeout
	defer cancel()
	select {
	case <-proc.Done():
		return proc.Err()
	case <-ctx.Done():
		return fmt.Errorf("%s does not stop: %w", g.Name, ctx.Err())
	}
}

// Ready requests /readyz, without a relay.
func (g *Gateway) Ready(ctx context.Context) error {
	_, err := g.served.Get(ctx, "/readyz")
	return err
}

// URL is the address of the HTTP API, without a relay.
func (g *Gateway) URL() string { return "http://" + g.API }

// balancerHost is the address that the balancer's connections come from.
const balancerHost = "127.0.0.2"

// startBalancer starts HAProxy in front of the gateways, with its own relays to them.
func (c *Cluster) startBalancer(ctx context.Context) error {
	if !c.opts.Balancer {
		return nil
	}
	root, err := stack.Root()
	if err != nil {
		return err
	}
	at, err := stack.FreePorts()
	if err != nil {
		return err
	}
	var gateways []stack.Ports
	for i := range 3 { // haproxy.cfg names three
		g := c.Gateways[i%len(c.Gateways)]
		ports, err := c.portsOf("balancer", g.Name, g.Ports)
		if err != nil {
			return err
		}
		gateways = append(gateways, ports)
	}
	for _, link := range c.Net.Find("balancer", "") {
		link.Source = net.ParseIP(balancerHost)
	}
	c.balancer = &at
	c.haproxy, err = c.stack.HAProxy(ctx, filepath.Join(root, "deploy", "haproxy", "haproxy.cfg"), at, gateways...)
	return err
}

// portsOf returns a process's own addresses for a gateway's ports.
func (c *Cluster) portsOf(from, to string, ports stack.Ports) (stack.Ports, error) {
	for name, addr := range map[string]*string{"/api": &ports.API, "/pg": &ports.PG, "/s3": &ports.S3} {
		way, err := c.way(from, to+name, *addr)
		if err != nil {
			return ports, err
		}
		*addr = way
	}
	return ports, nil
}
