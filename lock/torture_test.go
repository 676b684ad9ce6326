//go:build linux

package lock_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fencegate/fencegate/lock"
)

var (
	tortureFor  = flag.Duration("torture.for", 0, "how long TestTorture torments each of its groups of nodes; 0: a short form")
	tortureWant = flag.Int("torture.want", 0, "how many acquisitions TestTorture has to see in all")
	tortureSeed = flag.Uint64("torture.seed", 0, "seed of TestTorture's faults; 0: a new one")
)

// scenario is one group of nodes, its clients, and their faults.
type scenario struct {
	nodes     int
	armed     bool
	jumps     bool   // clocks of nodes jump
	broken    string // a safeguard that is removed: violations must be found
	pace      int    // times by which everything that takes time is longer; 0: once; see slowness
	lasting   time.Duration
	maxTTL    time.Duration
	resources int
	clients   int
	odds      odds
}

func (s scenario) String() string {
	text := fmt.Sprintf("%d nodes", s.nodes)
	if s.armed {
		text += ", armed"
	}
	if s.jumps {
		text += ", clocks jump"
	}
	if s.broken != "" {
		text += ", without " + s.broken
	}
	if s.pace > 1 {
		text += fmt.Sprintf(", %d times slower", s.pace)
	}
	return text
}

// scaled is a time at the scenario's pace.
func (s scenario) scaled(d time.Duration) time.Duration { return d * time.Duration(max(1, s.pace)) }

// Tokens are unique and rise whatever happens to nodes, messages, clients and clocks. While clocks run correctly, a
// lease never has two holders at one time.
//
// The short form is one of the tests; `make torture` runs the long one. A seed gives the same faults again, though
// not at the same instants of the protocol.
func TestTorture(t *testing.T) { //nolint:tparallel // one group after the other: each is to have the machine
	t.Parallel()
	seed := *tortureSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d", seed)
	short := *tortureFor == 0
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
	if short {
		groups = groups[:2]
	}
	total := 0
	for i := 0; i < len(groups) || total < *tortureWant && i < 3*len(groups); i++ {
		s := groups[i%len(groups)]
		s.maxTTL, s.resources, s.clients, s.lasting, s.odds = 80*time.Millisecond, 40, 3, *tortureFor, everything
		if short {
			s.lasting, s.resources, s.clients = 4*time.Second, 6, 2
		}
		t.Run(s.String(), func(t *testing.T) {
			found := s.run(t, seed+uint64(i))
			t.Log(found)
			found.check(t)
			total += found.acquisitions
		})
	}
	t.Logf("%d acquisitions", total)
	if total < *tortureWant {
		t.Errorf("%d acquisitions; %d are wanted", total, *tortureWant)
	}
}

// check fails for each violation.
func (f findings) check(t *testing.T) {
	t.Helper()
	if f.acquisitions < enough {
		t.Errorf("only %d acquisitions", f.acquisitions)
	}
	if f.duplicates+f.inversions > 0 {
		t.Errorf("%d duplicate tokens, %d inversions", f.duplicates, f.inversions)
	}
	if f.late > 0 {
		t.Errorf("%d times a lease looked good after its deadline", f.late)
	}
	if f.kept > 0 {
		t.Errorf("%d times a resource was not free once it was released", f.kept)
	}
	if !f.scenario.jumps && f.overlaps > 0 {
		t.Errorf("%d times two holders at one time, for up to %v", f.overlaps, f.longest)
	}
}

// Without one of the safeguards the same faults lead to violations, and the run finds them.
func TestTortureFindsWhatASafeguardPrevents(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		broken  string
		odds    odds
		violate func(findings) bool
	}{
		{"confirm", odds{lose: 4, late: 2, flush: 0}, func(f findings) bool { return f.duplicates > 0 && f.inversions > 0 }},
		{"marker", odds{flush: 1, lose: 1}, func(f findings) bool { return f.duplicates > 0 && f.inversions > 0 }},
		{"quarantine", odds{flush: 1, lose: 1}, func(f findings) bool { return f.overlaps > 0 }},
	} {
		t.Run(c.broken, func(t *testing.T) {
			t.Parallel()
			s := scenario{
				// The leases are long enough to be acquired and lost on a busy machine, too.
				nodes: 3, broken: c.broken, lasting: patience, maxTTL: 400 * time.Millisecond,
				resources: 3, clients: 2, odds: c.odds,
			}
			found := s.find(t, c.violate)
			t.Log(found)
			if c.broken == "quarantine" && found.duplicates+found.inversions > 0 {
				t.Error("tokens need no quarantine")
			}
			if !c.violate(found) {
				t.Error("nothing was found")
			}
		})
	}
}

// find runs the scenario until there is a violation.
func (s scenario) find(t *testing.T, violate func(findings) bool) findings {
	t.Helper()
	ctx, found := context.WithCancel(t.Context())
	defer found()
	return s.runUntil(ctx, t, rand.Uint64(), func(f findings) {
		if violate(f) {
			found()
		}
	})
}

// enough is the number of acquisitions below which a run without findings means nothing.
const enough = 50

// slowness is by how much everything that takes time has to be longer than on a machine with nothing else to do, where
// an acquisition takes about a millisecond. With less the steps of an acquisition do not keep up with the time limits of
// nodes, tries and leases, and with the faults.
func (g *tortureGroup) slowness(t *testing.T) int {
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
	return min(1+int(took[len(took)*9/10]/(10*time.Millisecond)), 16)
}

// patience is how long a run may take until there was enough to see. A busy machine needs it.
const patience = 3 * time.Minute

// run runs the scenario for its time, and until there were enough acquisitions.
func (s scenario) run(t *testing.T, seed uint64) findings {
	t.Helper()
	ctx, done := context.WithCancel(t.Context())
	defer done()
	until := time.Now().Add(s.lasting)
	s.lasting += patience
	return s.runUntil(ctx, t, seed, func(f findings) {
		if f.acquisitions >= enough && time.Now().After(until) {
			done()
		}
	})
}

// runUntil runs the scenario until the time is over or ctx ends. look, if set, is called from time to time with the
// findings so far.
func (s scenario) runUntil(ctx context.Context, t *testing.T, seed uint64, look func(findings)) findings {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 0))
	g := newTortureGroup(t, s)
	s.pace = g.slowness(t)
	s.maxTTL = s.scaled(s.maxTTL)
	g.s = s
	c := clientConfig{
		Broken: s.broken, Addrs: g.addrs(), Prefix: "torture", Authority: newAuthority(t).path, Armed: s.armed,
		Lasting: !s.jumps, MaxTTL: s.maxTTL, Resources: s.resources, Pace: max(1, s.pace),
	}
	dir := t.TempDir()
	g.histories = filepath.Join(dir, "history-*")
	c.Admin = true
	admin := startTortureClient(t, c)
	c.Admin = false
	if said := admin.says(t); said != "ready" {
		t.Fatalf("the client said %q", said)
	}
	var clients []*tortureProcess
	for i := range s.clients {
		c.Seed, c.History = random.Uint64(), filepath.Join(dir, fmt.Sprint("history-", i))
		clients = append(clients, startTortureClient(t, c))
	}
	ctx, cancel := context.WithTimeout(ctx, s.lasting)
	defer cancel()
	begun := time.Now()
	var tormentors sync.WaitGroup
	for _, n := range g.nodes {
		own := rand.New(rand.NewPCG(random.Uint64(), 3))
		tormentors.Go(func() { g.torment(ctx, t, n, own) })
	}
	for _, p := range append(clients, admin) {
		own := rand.New(rand.NewPCG(random.Uint64(), 4))
		tormentors.Go(func() { g.stopAndGo(ctx, t, p, own) })
	}
	for look != nil && ctx.Err() == nil {
		rest(ctx, 300*time.Millisecond)
		look(examine(t, dir))
	}
	tormentors.Wait()
	lasted := time.Since(begun)
	for _, p := range append(clients, admin) {
		p.end(t)
	}
	found := examine(t, dir)
	found.scenario, found.lasted, found.counts = s, lasted, &g.counts
	for _, p := range clients {
		found.failed += p.report.Failed
		found.late += p.report.Late
		found.kept += p.report.Kept
	}
	for _, n := range g.nodes {
		g.counts.lost.Add(n.relay.lost.Load())
	}
	return found
}

// examine reads the histories of all clients.
func examine(t *testing.T, dir string) findings {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "history-*"))
	must(t, err)
	var text []byte
	for _, file := range files {
		one, err := os.ReadFile(file)
		must(t, err)
		text = append(text, one[:len(one)/recordSize*recordSize]...)
	}
	return judge(readRecords(text))
}
