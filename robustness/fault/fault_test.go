//go:build faults

package fault

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	product "github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/robustness/client"
	"github.com/fencegate/fencegate/robustness/cluster"
	"github.com/fencegate/fencegate/robustness/history"
)

// The test plays each fault once on a real cluster: go test -tags faults -run RealCluster ./fault. FAULTS selects some
// of them; ASYNC=1 makes the standby replicate asynchronously.
func TestEveryFaultOnARealCluster(t *testing.T) {
	c := realCluster(t)
	resources := []string{"robust/r1-1", "robust/r1-2", "robust/r1-3"}
	must(t, c.Setup(t.Context(), resources))
	operator, err := history.Append(filepath.Join(t.TempDir(), "operator"))
	must(t, err)
	defer operator.Close()
	var only []string
	if text := os.Getenv("FAULTS"); text != "" {
		only = strings.Split(text, ",")
	}
	for i, f := range All {
		if only != nil && !is(f.Name, only...) || slices.Contains(Lacks(c), f.Needs) {
			continue
		}
		e := Event{Fault: f.Name, Seed: uint64(i), For: min(f.Longest, max(f.Shortest, 500*time.Millisecond))}
		begin := time.Now()
		r := Play(t.Context(), []Event{e}, On(c), Scene{Round: 1, Resources: resources, Operator: operator, Log: t.Output()})
		lasted := time.Since(begin)
		if len(r.Undone)+len(r.Found) > 0 {
			t.Errorf("%v; %v", r.Undone, r.Found)
		}
		if lasted > e.For+f.Tail+time.Second {
			t.Errorf("%s took %v, which its tail of %v does not cover", e, lasted, f.Tail)
		}
		works(t, c)
	}
	if faulty, err := c.Faulty(); err != nil || len(faulty) > 0 {
		t.Errorf("%v; %v", faulty, err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func realCluster(t *testing.T) *cluster.Cluster {
	t.Helper()
	ctx := t.Context()
	program, err := cluster.Build(ctx, "../../cmd/fencegate", t.TempDir(), nil)
	must(t, err)
	effects, err := os.ReadFile("../judge/effects.sql")
	must(t, err)
	c, err := cluster.Start(ctx, cluster.Options{Program: program, Client: os.Args[0], SQL: []string{string(effects)}, Async: os.Getenv("ASYNC") != ""})
	must(t, err)
	t.Cleanup(func() { must(t, c.Close()) })
	for n := range 3 {
		cfg, err := c.ClientConfig(n+1, 1)
		must(t, err)
		_, err = c.StartClient(ctx, cfg)
		must(t, err)
	}
	works(t, c)
	t.Cleanup(traffic(c))
	return c
}

// traffic uses the system until the returned function is called: a lost node is admitted when a lease is requested.
func traffic(c *cluster.Cluster) func() {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for _, g := range c.Gateways {
		running.Go(func() {
			for wait(ctx, 100*time.Millisecond) {
				_ = lease(ctx, g, "robust/r1-1")
			}
		})
	}
	return func() {
		cancel()
		running.Wait()
	}
}

// works waits until every gateway gives leases.
func works(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for _, g := range c.Gateways {
		if err := until(ctx, func(ctx context.Context) error { return lease(ctx, g, "robust/works") }); err != nil {
			t.Fatalf("%s does not work 30s after the faults: %v", g.Name, err)
		}
	}
}

func lease(ctx context.Context, g *cluster.Gateway, resource string) error {
	api, err := product.New(product.Config{URL: g.URL(), Token: cluster.Token})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	lease, err := api.Acquire(ctx, product.AcquireRequest{Resource: resource, Holder: g.Name, TTL: time.Second})
	if err != nil {
		return err
	}
	return api.Release(ctx, lease.Handle)
}

// A client here only answers its orders.
func init() { //nolint:gochecknoinits // the test's binary is the clients' program
	if len(os.Args) < 2 || os.Args[1] != "client" {
		return
	}
	in := bufio.NewReader(os.Stdin)
	if _, err := in.ReadBytes('\n'); err != nil { // its Config
		os.Exit(1)
	}
	for {
		line, err := in.ReadBytes('\n')
		var order client.Order
		if err = errors.Join(err, json.Unmarshal(line, &order)); err != nil {
			os.Exit(0)
		}
		if err := json.NewEncoder(os.Stdout).Encode(client.Report{Done: order.Do}); err != nil {
			os.Exit(1)
		}
	}
}
