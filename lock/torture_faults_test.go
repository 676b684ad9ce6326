//go:build linux

package lock_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/internal/leases/torture"
	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/internal/testenv/clockshim"
)

// odds are the relative frequencies of a node's faults.
type odds struct{ freeze, kill, cut, flush, jump int }

var everything = odds{freeze: 4, kill: 1, cut: 1, flush: 1, jump: 8}

// tortureGroup is a group of real nodes, each with its own clock and folder.
type tortureGroup struct {
	s     scenario
	nodes []*tortureNode
}

type tortureNode struct {
	server *redisserver.Server
	direct *redis.Client
	clock  *clockshim.Clock
	dir    string
}

func newTortureGroup(t *testing.T, s scenario) *tortureGroup {
	t.Helper()
	g := &tortureGroup{s: s}
	clock := clockshim.New(t)
	for i := range s.nodes {
		n := &tortureNode{clock: clock.Another(t), dir: t.TempDir()}
		var err error
		n.server, err = redisserver.Start(t.Context(), redisserver.Config{
			Dir: n.dir, Env: n.clock.Env(), AppendOnly: []redisserver.Persistence{redisserver.Always, redisserver.None, redisserver.EverySec}[i%3],
			Args: []string{"--auto-aof-rewrite-min-size", "4mb"},
		})
		must(t, err)
		n.direct = redis.NewClient(&redis.Options{Addr: n.server.Addr, MaxRetries: -1})
		t.Cleanup(func() {
			if err := errors.Join(n.direct.Close(), n.server.Close()); err != nil {
				t.Error(err)
			}
		})
		g.nodes = append(g.nodes, n)
	}
	return g
}

func (g *tortureGroup) addrs() []string {
	var addrs []string
	for _, n := range g.nodes {
		addrs = append(addrs, n.server.Addr)
	}
	return addrs
}

func (g *tortureGroup) servers() []torture.Server {
	var servers []torture.Server
	for _, n := range g.nodes {
		o := g.s.odds
		if !g.s.jumps {
			o.jump = 0
		}
		start := func() error { return n.server.Restart(context.Background()) }
		servers = append(servers, torture.Server{Addr: n.server.Addr, Faults: []torture.Fault{
			torture.Frozen(o.freeze, n.server.Freeze, n.server.Thaw),
			torture.Killed(o.kill, n.server.Kill, start),
			{Name: "servers killed with the end of their log cut", Odds: o.cut, Begin: n.killAndCut, End: start},
			{Name: "servers flushed", Odds: o.flush, Begin: func(r *rand.Rand) error { return g.flush(n, r) }},
			{Name: "clocks set", Odds: o.jump, Begin: func(r *rand.Rand) error { return g.jump(n, r) }},
		}})
	}
	return servers
}

// flush deletes data or the scripts while the node runs.
func (g *tortureGroup) flush(n *tortureNode, random *rand.Rand) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	pick := random.IntN(4)
	if g.s.broken != "" {
		pick = 0
	}
	switch pick { // a node that is down has lost nothing
	case 0:
		_ = n.direct.FlushAll(ctx).Err()
	case 1:
		_ = n.direct.Del(ctx, "torture:h").Err()
	case 2:
		_ = n.direct.ScriptFlush(ctx).Err()
	default: // all at once
		for _, other := range g.nodes {
			_ = other.direct.FlushAll(ctx).Err()
		}
	}
	return nil
}

// jump sets a node's clock, sometimes that of every node at once.
func (g *tortureGroup) jump(n *tortureNode, random *rand.Rand) (err error) {
	nodes, to := []*tortureNode{n}, torture.Offset(random)
	if random.IntN(4) == 0 {
		nodes = g.nodes
	}
	for _, n := range nodes {
		err = errors.Join(err, n.clock.Set(to))
	}
	return err
}

// killAndCut simulates a power failure: the end of the append-only file never reached the disk.
func (n *tortureNode) killAndCut(random *rand.Rand) error {
	if err := n.server.Kill(); err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(n.dir, "appendonlydir", "*.incr.aof"))
	if err != nil || len(files) == 0 {
		return err
	}
	slices.SortFunc(files, func(a, b string) int { return len(a) - len(b) + strings.Compare(a, b) })
	info, err := os.Stat(files[len(files)-1])
	if err != nil || info.Size() == 0 {
		return err
	}
	keep := max(0, info.Size()-random.Int64N(8<<10))
	if random.IntN(3) == 0 {
		keep = random.Int64N(info.Size())
	}
	return os.Truncate(files[len(files)-1], keep)
}
