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
	"strconv"
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
	if err := c.Setup(t.Context(), resources); err != nil {
		t.Fatal(err)
	}
	operator, err := history.Append(filepath.Join(t.TempDir(), "operator"))
	if err != nil {
		t.Fatal(err)
	}
	defer operator.Close()
	var only []string
	if text := os.Getenv("FAULTS"); text != "" {
		only = strings.Split(text, ",")
	}
	for i, f := range All {
		if only != nil && !isAny(f.Name, only) || slices.Contains(Lacks(c), f.Needs) {
			continue
		}
		e := Event{Fault: f.Name, Seed: uint64(i), For: min(f.Longest, max(f.Shortest, 500*time.Millisecond))}
		begin := time.Now()
		r := Play(t.Context(), []Event{e}, On(c), Scene{Round: 1, Resources: resources, Operator: operator, Log: lines{t}})
		lasted := time.Since(begin)
		begin = time.Now()
		for _, found := range r.Found {
			r.Undone = append(r.Undone, found)
		}
		for _, err := range r.Undone {
			t.Error(err)
		}
		if lasted > e.For+f.Tail+time.Second {
			t.Errorf("%s took %v, which its tail of %v does not cover", e, lasted, f.Tail)
		}
		works(t, c)
		t.Logf("%s: took %v, worked again %v after it", f.Name, lasted, time.Since(begin))
	}
	faulty, err := c.Faulty()
	if err != nil || len(faulty) > 0 {
		t.Errorf("%v; %v", faulty, err)
	}
}

// TestPlansOnARealCluster plays whole rounds with the seed SEED.
func TestPlansOnARealCluster(t *testing.T) {
	c := realCluster(t)
	seed, _ := strconv.ParseUint(os.Getenv("SEED"), 10, 64) // 0 is a valid seed
	for round := range 3 {
		plan, err := Plan(Wish{Seed: seed, Round: round, Length: 30 * time.Second, Async: c.Async(), Lacks: Lacks(c)})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range plan {
			t.Log(e)
		}
		begin := time.Now()
		r := Play(t.Context(), plan, On(c), Scene{Round: round, Resources: []string{"robust/r1-1"}, Log: lines{t}})
		t.Logf("round %d took %v: %v; undone %v", round, time.Since(begin), r.Counts, r.Undone)
		for _, err := range r.Found {
			t.Error(err)
		}
		works(t, c)
	}
}

func realCluster(t *testing.T) *cluster.Cluster {
	t.Helper()
	ctx, dir := t.Context(), t.TempDir()
	program, err := cluster.Build(ctx, "../../cmd/fencegate", dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	effects, err := os.ReadFile("../judge/effects.sql")
	if err != nil {
		t.Fatal(err)
	}
	c, err := cluster.Start(ctx, cluster.Options{
		Program: program, Client: os.Args[0], SQL: []string{string(effects)}, Async: os.Getenv("ASYNC") != "",
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	for n := range 3 {
		cfg, err := c.ClientConfig(n+1, 1)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.StartClient(ctx, cfg); err != nil {
			t.Fatal(err)
		}
	}
	works(t, c)
	t.Cleanup(traffic(t, c))
	return c
}

// traffic uses the system: a lost node is admitted when a lease is requested from it. It continues until the returned
// function is called.
func traffic(t *testing.T, c *cluster.Cluster) func() {
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	for _, g := range On(c).Gateways() {
		running.Go(func() {
			api, err := apiOf(g)
			if err != nil {
				t.Error(err)
				return
			}
			for wait(ctx, 100*time.Millisecond) {
				ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
				lease, err := api.Acquire(ctx, product.AcquireRequest{Resource: "robust/r1-1", Holder: g.Name(), TTL: time.Second})
				if err == nil {
					_ = api.Release(ctx, lease.Handle) // otherwise it expires
				}
				cancel()
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
	for _, g := range On(c).Gateways() {
		var last error
		err := until(ctx, func(ctx context.Context) error {
			api, err := apiOf(g)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
			defer cancel()
			lease, err := api.Acquire(ctx, product.AcquireRequest{Resource: "robust/works", Holder: "test", TTL: time.Second})
			if err == nil {
				err = api.Release(ctx, lease.Handle)
			}
			if err != nil && ctx.Err() == nil {
				last = err
			}
			return err
		})
		if err != nil {
			t.Fatalf("%s does not work 30s after the faults: %v; before: %v", g.Name(), err, last)
		}
	}
}

type lines struct{ t *testing.T }

func (l lines) Write(line []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(line)))
	return len(line), nil
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
