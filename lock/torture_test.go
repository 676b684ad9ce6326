//go:build linux

package lock_test

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/fencegate/fencegate/internal/leases/torture"
	"github.com/fencegate/fencegate/lock"
)

// scenario is one group of nodes, its clients, and their faults.
type scenario struct {
	nodes  int
	armed  bool
	jumps  bool   // clocks of nodes jump
	broken string // a safeguard that is removed: violations must be found
	maxTTL time.Duration
	odds   odds
}

func (s scenario) String() string {
	text := fmt.Sprintf("%d nodes", s.nodes)
	if s.armed {
		text += ", armed"
	}
	if s.jumps {
		text += ", clocks jump"
	}
	return text
}

// Tokens are unique and rise whatever happens to nodes, messages, clients and clocks. While clocks run correctly, a
// lease never has two holders at one time.
//
// The short form is one of the tests; `make torture` runs the long one.
func TestTorture(t *testing.T) { //nolint:tparallel // one group after the other: each is to have the machine
	t.Parallel()
	groups := []scenario{
		{nodes: 3},
		{nodes: 5, armed: true, jumps: true},
		{nodes: 5},
		{nodes: 3, armed: true},
		{nodes: 5, armed: true},
		{nodes: 3, jumps: true},
		{nodes: 5, jumps: true},
		{nodes: 3, armed: true, jumps: true},
	}
	if *torture.For == 0 {
		groups = groups[:2]
	}
	total := 0
	for _, s := range groups {
		s.maxTTL, s.odds = 80*time.Millisecond, everything
		t.Run(s.String(), func(t *testing.T) {
			cfg := s.config(t)
			cfg.Enough, cfg.Resources, cfg.Callers = 50, 6, 14
			if *torture.For > 0 {
				cfg.Resources, cfg.Callers = 40, 20
			}
			total += torture.Run(t, cfg).Leases
		})
	}
	t.Logf("%d leases", total)
}

// Without one of the safeguards the same faults lead to violations, and the run finds them.
func TestTortureFindsWhatASafeguardPrevents(t *testing.T) {
	t.Parallel()
	fell := func(v torture.Verdict) bool { return v.Duplicates > 0 && v.Falling > 0 }
	for broken, found := range map[string]func(torture.Verdict) bool{
		"confirm":    fell,
		"marker":     fell,
		"quarantine": func(v torture.Verdict) bool { return v.Overlaps > 0 },
	} {
		t.Run(broken, func(t *testing.T) {
			t.Parallel()
			// The leases are long enough to be acquired and lost on a busy machine, too.
			s := scenario{nodes: 3, broken: broken, maxTTL: 400 * time.Millisecond, odds: odds{flush: 1}}
			if broken == "confirm" {
				s.odds = odds{}
			}
			cfg := s.config(t)
			cfg.Resources, cfg.For, cfg.Until = 3, 3*time.Minute, found
			v := torture.Play(t, cfg)
			t.Log(v)
			if broken == "quarantine" && v.Duplicates+v.Falling > 0 {
				t.Error("tokens need no quarantine")
			}
			if !found(v) {
				t.Error("nothing was found")
			}
		})
	}
}

// config starts the scenario's nodes.
func (s scenario) config(t *testing.T) torture.Config {
	t.Helper()
	g := newTortureGroup(t, s)
	pace := g.slowness(t) // a factor
	maxTTL := s.maxTTL * pace
	cfg := torture.Config{
		Servers: g.servers(), TTL: maxTTL * 3 / 8, Longest: 2 * time.Second * pace, First: true, Loses: true,
		Setup: tortureSetup{
			Broken: s.broken, Authority: newAuthority(t).path, Prefix: "torture", Armed: s.armed, MaxTTL: maxTTL, NodeTimeout: lock.DefaultNodeTimeout * pace,
		},
	}
	if s.jumps { // back: that leaves locks for hours
		cfg.Overlap, cfg.Renamed = math.MaxInt64, 3*time.Second
	}
	return cfg
}

// slowness is by how much everything that takes time has to be longer than on a machine with nothing else to do, where
// an acquisition takes about a millisecond. With less the steps of an acquisition do not keep up with the time limits of
// nodes, tries and leases, and with the faults.
func (g *tortureGroup) slowness(t *testing.T) time.Duration {
	t.Helper()
	l := started(t, lock.Config{Nodes: nodesAt(g.addrs()...), KeyPrefix: lock.Prefix("slowness"), NodeTimeout: patient})
	took := make([]time.Duration, 50)
	for i := range took {
		begun := time.Now()
		release(t, acquire(t, l, "r"))
		took[i] = time.Since(begun)
	}
	must(t, l.Close())
	slices.Sort(took)
	return min(1+took[len(took)*9/10]/(10*time.Millisecond), 16)
}
