//go:build unix

package continuity

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9/logging"

	"github.com/fencegate/fencegate/internal/memredis"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
)

func TestMain(m *testing.M) {
	logging.Disable() // of nodes that are down
	testenv.VerifyMain(m, testenv.LeakOptions()...)
}

// inMemory starts n nodes in the memory of a test.
func inMemory(t *testing.T, n int) (nodes []*memredis.Node, cfg []lock.Node) {
	t.Helper()
	for i := range n {
		node := memredis.Start(t)
		nodes = append(nodes, node)
		cfg = append(cfg, lock.Node{Addr: fmt.Sprintf("node-%d", i+1), Dialer: node.Dial})
	}
	return nodes, cfg
}

func open(t *testing.T, cfg []lock.Node) *Nodes {
	t.Helper()
	w, err := New(cfg, lock.Prefix("continuity-test"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = w.Close()
		time.Sleep(time.Second) // go-redis looks once a second for a node that is down, until its pool is closed
	})
	return w
}

func says(s State) func(context.Context) (State, error) {
	return func(context.Context) (State, error) { return s, nil }
}

// look is [Nodes.Look] of what a PostgreSQL says.
func look(t *testing.T, w *Nodes, s State) error {
	t.Helper()
	return w.Look(t.Context(), says(s))
}

func TestWhatIsTakenForTheSameHistory(t *testing.T) {
	t.Parallel()
	was := State{Identity: "s/1/o", Written: 100, Beats: 7, Invalidations: []string{"a"}, Database: 5}
	for name, c := range map[string]struct {
		is        State
		forgotten bool
	}{
		"nothing happened":                     {State{Identity: "s/1/o", Written: 100, Beats: 7, Invalidations: []string{"a"}}, false},
		"it went on":                           {State{Identity: "s/1/o", Written: 200, Beats: 9, Invalidations: []string{"a"}}, false},
		"set back, as its position says":       {State{Identity: "s/1/o", Written: 99, Beats: 7, Invalidations: []string{"a"}}, true},
		"set back, as its beats say":           {State{Identity: "s/1/o", Written: 900, Beats: 6, Invalidations: []string{"a"}}, true},
		"promoted":                             {State{Identity: "s/2/o", Written: 200, Beats: 7, Invalidations: nil}, true},
		"another server":                       {State{Identity: "x/1/o", Written: 200, Beats: 7, Invalidations: nil}, true},
		"restored from a dump":                 {State{Identity: "s/1/p", Written: 200, Beats: 7, Invalidations: nil}, true},
		"promoted, and invalidated":            {State{Identity: "s/2/o", Written: 90, Beats: 3, Invalidations: []string{"b"}}, false},
		"set back, and invalidated":            {State{Identity: "s/1/o", Written: 90, Beats: 3, Invalidations: []string{"a", "b"}}, false},
		"set back, with an old invalidation":   {State{Identity: "s/1/o", Written: 90, Beats: 3, Invalidations: []string{"a"}}, true},
		"promoted, with an old invalidation":   {State{Identity: "s/2/o", Written: 90, Beats: 3, Invalidations: []string{"a"}}, true},
		"a copy in the same cluster":           {State{Identity: "s/1/o", Written: 200, Beats: 9, Invalidations: []string{"a"}, Database: 6}, true},
		"a copy that was invalidated":          {State{Identity: "s/1/o", Written: 200, Beats: 9, Invalidations: []string{"a", "b"}, Database: 6}, false},
		"a schema that did not say which":      {State{Identity: "s/1/o", Written: 200, Beats: 9, Invalidations: []string{"a"}, Database: 0}, false},
		"invalidated without having forgotten": {State{Identity: "s/1/o", Written: 200, Beats: 9, Invalidations: []string{"a", "b"}}, false},
	} {
		if c.is.Database == 0 && name != "a schema that did not say which" {
			c.is.Database = was.Database
		}
		if got := forgotten(was, c.is); got != c.forgotten {
			t.Errorf("%s: forgotten = %t", name, got)
		}
	}
}

func TestAQuorumRemembersWhatAMinorityMissed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes, cfg := inMemory(t, 3)
		w := open(t, cfg)
		first := State{Identity: "s/1/o", Written: 100}
		if err := look(t, w, first); err != nil {
			t.Fatalf("the first look: %v", err)
		}
		// Two nodes record the promotion and its invalidation. The third is frozen.
		nodes[2].Freeze()
		var e *ForgottenError
		promoted := State{Identity: "s/2/o", Written: 50}
		if err := look(t, w, promoted); !errors.As(err, &e) || !strings.HasSuffix(err.Error(), "invalidate-all --yes") {
			t.Fatalf("promoted: %v", err)
		}
		promoted.Invalidations = []string{"b"}
		if err := look(t, w, promoted); err != nil {
			t.Fatalf("invalidated: %v", err)
		}
		// The third returns with the older record, while one of the two is away.
		nodes[2].Thaw()
		nodes[0].Stop()
		if err := look(t, w, promoted); err != nil {
			t.Errorf("with a node that missed it: %v", err)
		}
		back := promoted
		back.Written = 40
		if err := look(t, w, back); !errors.As(err, &e) || !strings.HasSuffix(err.Error(), "--again") {
			t.Errorf("set back to after its invalidation: %v", err)
		}
		if err := look(t, w, first); !errors.As(err, &e) {
			t.Errorf("the former primary: %v", err)
		}
		nodes[1].Stop()
		if err := look(t, w, promoted); err == nil || errors.As(err, &e) {
			t.Errorf("without a quorum: %v", err)
		}
	})
}

func TestGatewaysThatLookAtTheSameTimeDoNotDoubtEachOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes, cfg := inMemory(t, 3)
		for _, n := range nodes { // they overtake each other
			n.Requests.Delay(func() time.Duration { return rand.N(20 * time.Millisecond) })
		}
		var position atomic.Uint64
		var beats atomic.Int64
		var looks sync.WaitGroup
		for range 8 {
			w := open(t, cfg)
			looks.Go(func() {
				for range 10 {
					err := w.Look(t.Context(), func(context.Context) (State, error) {
						time.Sleep(rand.N(5 * time.Millisecond))
						seen := State{Identity: "s/1/o", Written: position.Add(1), Beats: beats.Load()}
						time.Sleep(rand.N(5 * time.Millisecond))
						return seen, nil
					})
					if _, doubt := errors.AsType[*ForgottenError](err); doubt {
						t.Errorf("doubt without a reason: %v", err)
					}
				}
			})
		}
		looks.Wait()
	})
}

// Following the advice for a forgetful server would end the leases of the database that owns the keys.
func TestTheKeysOfAnotherDatabaseAreLeftAsTheyAre(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, cfg := inMemory(t, 3)
		w := open(t, cfg)
		older := State{Identity: "s/1/o", Written: 90, Invalidations: []string{}} // as a program without groups reports it
		first := State{Identity: "s/1/o", Written: 100, Invalidations: []string{}, Group: "g1", Database: 5}
		for _, seen := range []State{older, first} {
			if err := look(t, w, seen); err != nil {
				t.Fatal(err)
			}
		}
		for name, neighbour := range map[string]State{
			"another server":           {Identity: "x/1/o", Written: 100, Group: "g2", Database: 5},
			"the same one":             {Identity: "s/1/p", Written: 200, Group: "g2", Database: 6},
			"one that was invalidated": {Identity: "s/1/p", Written: 200, Invalidations: []string{"b"}, Group: "g2", Database: 6},
		} {
			err := look(t, w, neighbour)
			if !errors.As(err, new(*OtherDatabaseError)) || !Refused(err) {
				t.Errorf("%s: %v; want an OtherDatabaseError", name, err)
			} else if text := err.Error(); strings.Contains(text, "invalidate") || !strings.Contains(text, "--redis-prefix") || !strings.Contains(text, "continuity-test:") {
				t.Errorf("%s: %v", name, err)
			}
		}
		records, err := w.recall(t.Context(), "continuity-test:postgresql")
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range records {
			if r.err != nil || r.state.Group != "g1" || r.state.Identity != first.Identity {
				t.Errorf("node %d remembers %s, %v", i, r.text, r.err)
			}
		}
		if err := look(t, w, first); err != nil {
			t.Errorf("the first database after that: %v", err)
		}
	})
}
