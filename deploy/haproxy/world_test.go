//go:build balancer && unix

package haproxy_test

import (
	"testing"
	"time"

	"github.com/fencegate/fencegate/internal/stack"
	"github.com/fencegate/fencegate/internal/stack/stacktest"
)

const (
	gateways = 3
	lameDuck = 4 * time.Second
)

// world is three gateways as processes behind HAProxy.
type world struct {
	t   *testing.T
	pg  *stack.Postgres
	run [gateways]*stack.GatewayProcess
	lb  stack.Ports
}

func setup(t *testing.T) *world {
	t.Helper()
	s := stacktest.New(t)
	w := &world{t: t, pg: stacktest.Postgres(t, s, stack.PostgresConfig{Database: stack.Database{
		Then: []string{"CREATE TABLE load (who text, n bigint)", "GRANT SELECT, INSERT ON load TO fence_writer"},
	}})}
	redis, err := s.Redis(t.Context(), 3)
	if err != nil {
		t.Fatal(err)
	}
	w.lb = freePorts(t)
	cfg := stack.GatewayConfig{URL: w.pg.As(stack.Gateway), Redis: redis.Addrs(), MasterKey: stack.NewMasterKey(), Flags: []string{
		"--bucket", "load=prefix:1", "--node-timeout", "2s", "--pg-proxy-from", "127.0.0.0/8", "--lame-duck", lameDuck.String(), "--drain-timeout", "3s",
		"--pg-advertise", w.lb.PG, "--s3-advertise", "http://" + w.lb.S3, "--max-ttl", "5m",
	}}
	for i, name := range []string{"gateway1", "gateway2", "gateway3"} {
		cfg.Name = name
		w.run[i] = stacktest.Serve(t, s, cfg)
	}
	balance(t, s, w.lb, w.run[0].Ports, w.run[1].Ports, w.run[2].Ports)
	return w
}

func freePorts(t *testing.T) stack.Ports {
	t.Helper()
	p, err := stack.FreePorts()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// balance starts HAProxy with this folder's configuration.
func balance(t *testing.T, s *stack.Stack, at stack.Ports, before ...stack.Ports) {
	t.Helper()
	if _, err := s.HAProxy(t.Context(), "haproxy.cfg", at, before...); err != nil {
		t.Fatal(err)
	}
}
