//go:build unix

package witness

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
)

func TestMain(m *testing.M) {
	testenv.VerifyMain(m, testenv.LeakOptions()...)
}

func open(t *testing.T, addrs ...string) *Witness {
	t.Helper()
	var nodes []lock.Node
	for _, addr := range addrs {
		nodes = append(nodes, lock.Node{Addr: addr})
	}
	w, err := New(nodes, "witness-test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	return w
}

func says(s Seen) func(context.Context) (Seen, error) {
	return func(context.Context) (Seen, error) { return s, nil }
}

func TestWhatIsTakenForTheSameHistory(t *testing.T) {
	t.Parallel()
	was := Seen{Identity: "s/1/o", Written: 100, Beats: 7, Invalidations: []string{"a"}}
	for name, c := range map[string]struct {
		is        Seen
		forgotten bool
	}{
		"nothing happened":                     {Seen{"s/1/o", 100, 7, []string{"a"}}, false},
		"it went on":                           {Seen{"s/1/o", 200, 9, []string{"a"}}, false},
		"set back, as its position says":       {Seen{"s/1/o", 99, 7, []string{"a"}}, true},
		"set back, as its beats say":           {Seen{"s/1/o", 900, 6, []string{"a"}}, true},
		"promoted":                             {Seen{"s/2/o", 200, 7, nil}, true},
		"another server":                       {Seen{"x/1/o", 200, 7, nil}, true},
		"restored from a dump":                 {Seen{"s/1/p", 200, 7, nil}, true},
		"promoted, and invalidated":            {Seen{"s/2/o", 90, 3, []string{"b"}}, false},
		"set back, and invalidated":            {Seen{"s/1/o", 90, 3, []string{"a", "b"}}, false},
		"set back, with an old invalidation":   {Seen{"s/1/o", 90, 3, []string{"a"}}, true},
		"promoted, with an old invalidation":   {Seen{"s/2/o", 90, 3, []string{"a"}}, true},
		"invalidated without having forgotten": {Seen{"s/1/o", 200, 9, []string{"a", "b"}}, false},
	} {
		if got := forgotten(was, c.is); got != c.forgotten {
			t.Errorf("%s: forgotten = %t", name, got)
		}
	}
}

func TestAQuorumRemembersWhatAMinorityMissed(t *testing.T) {
	t.Parallel()
	nodes := testenv.OwnRedis(t, 3)
	w := open(t, nodes[0].Addr, nodes[1].Addr, nodes[2].Addr)
	first := Seen{Identity: "s/1/o", Written: 100}
	if err := w.Look(t.Context(), says(first)); err != nil {
		t.Fatalf("the first look: %v", err)
	}
	// Two nodes see the promotion and its invalidation; the third is away.
	if err := nodes[2].Freeze(); err != nil {
		t.Fatal(err)
	}
	var e *ForgottenError
	promoted := Seen{Identity: "s/2/o", Written: 50}
	if err := w.Look(t.Context(), says(promoted)); !errors.As(err, &e) || !strings.HasSuffix(err.Error(), "invalidate-all --yes") {
		t.Fatalf("promoted: %v", err)
	}
	promoted.Invalidations = []string{"b"}
	if err := w.Look(t.Context(), says(promoted)); err != nil {
		t.Fatalf("invalidated: %v", err)
	}
	// It comes back with the older record, beside one of the two.
	if err := nodes[2].Thaw(); err != nil {
		t.Fatal(err)
	}
	if err := nodes[0].Kill(); err != nil {
		t.Fatal(err)
	}
	if err := w.Look(t.Context(), says(promoted)); err != nil {
		t.Errorf("with a node that missed it: %v", err)
	}
	back := promoted
	back.Written = 40
	if err := w.Look(t.Context(), says(back)); !errors.As(err, &e) || !strings.HasSuffix(err.Error(), "--again") {
		t.Errorf("set back to after its invalidation: %v", err)
	}
	if err := w.Look(t.Context(), says(first)); !errors.As(err, &e) {
		t.Errorf("the former primary: %v", err)
	}
	if err := nodes[1].Kill(); err != nil {
		t.Fatal(err)
	}
	if err := w.Look(t.Context(), says(promoted)); err == nil || errors.As(err, &e) {
		t.Errorf("without a quorum: %v", err)
	}
}

func TestGatewaysThatLookAtTheSameTimeDoNotDoubtEachOther(t *testing.T) {
	t.Parallel()
	redis := testenv.OwnRedis(t, 3)
	var position atomic.Uint64
	var beats atomic.Int64
	var looks sync.WaitGroup
	for range 8 {
		w := open(t, redis[0].Addr, redis[1].Addr, redis[2].Addr)
		looks.Go(func() {
			for range 50 {
				err := w.Look(t.Context(), func(context.Context) (Seen, error) {
					return Seen{Identity: "s/1/o", Written: position.Add(1), Beats: beats.Load()}, nil
				})
				if _, doubt := errors.AsType[*ForgottenError](err); doubt {
					t.Errorf("doubt without a reason: %v", err)
				}
			}
		})
	}
	looks.Wait()
}
