//go:build unix

package testenv

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/fencegate/fencegate/internal/redisserver"
)

// RedisNodes are Redis nodes that tests share.
type RedisNodes struct {
	Addrs  []string
	Prefix string // this test's prefix: put it before every key; no FLUSHALL
}

// Redis returns n independent nodes, which other tests use too, and the test's own key prefix.
func Redis(t testing.TB, n int) RedisNodes {
	t.Helper()
	addrs, err := sharedRedis(n)
	if err != nil {
		fatal(t, err)
	}
	return RedisNodes{Addrs: addrs, Prefix: "fencegate-test-" + unique()}
}

// OwnRedis returns n nodes that the test may kill, freeze, restart and flush. They have no persistence and are removed
// when the test ends.
func OwnRedis(t testing.TB, n int) []*redisserver.Server {
	t.Helper()
	return OwnRedisWith(t, n, redisserver.Config{})
}

// OwnRedisWith is [OwnRedis] with a choice of persistence and options.
func OwnRedisWith(t testing.TB, n int, cfg redisserver.Config) []*redisserver.Server {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startPatience)
	defer cancel()
	nodes, err := startAll(ctx, n, cfg)
	t.Cleanup(func() {
		for _, node := range nodes {
			if err := node.Close(); err != nil {
				t.Errorf("testenv: Redis node %s: %v", node.Addr, err)
			}
		}
	})
	if err != nil {
		fatal(t, err)
	}
	return nodes
}

var pool struct {
	sync.Mutex
	addrs []string
}

// sharedRedis returns the first n shared nodes, after starting the missing ones.
func sharedRedis(n int) ([]string, error) {
	pool.Lock()
	defer pool.Unlock()
	if given := givenRedis(); len(given) > 0 {
		if len(given) < n {
			return nil, fmt.Errorf("FENCEGATE_TEST_REDIS_ADDRS names %d nodes, but this test needs %d", len(given), n)
		}
		return given[:n], nil
	}
	if missing := n - len(pool.addrs); missing > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), startPatience)
		defer cancel()
		nodes, err := startAll(ctx, missing, redisserver.Config{})
		for _, node := range nodes {
			atEnd(node.Close)
		}
		if err != nil {
			return nil, err
		}
		for _, node := range nodes {
			pool.addrs = append(pool.addrs, node.Addr)
		}
	}
	return pool.addrs[:n:n], nil
}

// startAll starts n nodes concurrently. If it fails it returns the nodes that started.
func startAll(ctx context.Context, n int, cfg redisserver.Config) ([]*redisserver.Server, error) {
	nodes, errs := make([]*redisserver.Server, n), make([]error, n)
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() { nodes[i], errs[i] = startRedis(ctx, cfg) })
	}
	group.Wait()
	var up []*redisserver.Server
	for _, node := range nodes {
		if node != nil {
			up = append(up, node)
		}
	}
	return up, errors.Join(errs...)
}
