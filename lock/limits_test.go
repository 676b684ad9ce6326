package lock_test

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/memredis"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/admin"
)

// lastOfEpoch is the highest token of the first epoch.
const lastOfEpoch fence.Token = 1<<32 - 1

// countedTo sets a resource's counter on nodes in memory.
func countedTo(t *testing.T, nodes []*memredis.Node, resource string, token fence.Token) {
	t.Helper()
	for _, n := range nodes {
		field, value := "c:"+resource, strconv.FormatInt(int64(token), 10)
		must(t, n.Client(t).HSet(t.Context(), lock.DefaultKeyPrefix+":h", field, value).Err())
	}
}

func TestAResourceThatUsedUpItsTokensGoesOnInTheNextEpoch(t *testing.T) {
	t.Parallel()
	for name, store := range map[string]lock.EpochStore{"with an epoch store": &epochs{}, "without": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg, nodes := inMemory(t, 3)
				started(t, cfg)
				cfg.Epochs = store
				l := locker(t, cfg)
				countedTo(t, nodes, "r", lastOfEpoch-1)
				lease := leased(t, l, "r")
				if got := token(t, lease); got != lastOfEpoch {
					t.Fatalf("token %d", got)
				}
				must(t, lease.Release(t.Context()))
				if got := token(t, leased(t, l, "r")); got <= lastOfEpoch {
					t.Fatalf("token %d", got)
				}
			})
		})
	}
}

// A sweep raises every resource to the one that was used most. Near the end of an epoch that would use up all tokens.
func TestASweepNearTheEndOfAnEpochLeavesTokensForAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		l := started(t, cfg)
		countedTo(t, nodes, "r", lastOfEpoch)
		_, err := admin.Of(l).Sweep(t.Context())
		must(t, err)
		for range 3 {
			lease := leased(t, l, "other")
			if got := token(t, lease); got <= lastOfEpoch {
				t.Fatalf("token %d", got)
			}
			must(t, lease.Release(t.Context()))
		}
	})
}

// A Locker without the group's epoch store does not start an epoch that the store would allocate again.
func TestASweepWithoutTheEpochStoreStartsNoEpoch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 1)
		plain := cfg
		cfg.Epochs = &epochs{}
		l := started(t, cfg)
		countedTo(t, nodes, "r", 1<<32+1<<31+5)
		_, err := admin.Of(locker(t, plain)).Sweep(t.Context())
		must(t, err)
		var last fence.Token
		rises := func() {
			t.Helper()
			for range 3 {
				lease := leased(t, l, "r")
				got := token(t, lease)
				if got <= last {
					t.Errorf("token %d after %d", got, last)
				}
				last = got
				must(t, lease.Release(t.Context()))
			}
		}
		rises()
		must(t, nodes[0].Client(t).FlushAll(t.Context()).Err())
		must(t, admin.Of(l).Admit(t.Context(), "node-1"))
		rises()
	})
}

// Nodes that were admitted with a record of PostgreSQL say that it keeps the epoch.
func TestNodesWhoseEpochPostgreSQLKeepsStartNone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		plain := cfg
		store := &epochs{}
		cfg.Epochs = store
		started(t, cfg)
		before := store.last.Load()
		l := locker(t, plain)
		countedTo(t, nodes, "r", fence.Token(before)<<32+1<<31+5)
		_, err := admin.Of(l).Sweep(t.Context())
		must(t, err)
		countedTo(t, nodes, "r", fence.Token(before)<<32+lastOfEpoch)
		if _, err := l.TryAcquire(t.Context(), "r"); !errors.Is(err, lock.ErrExhausted) || !strings.Contains(err.Error(), "Config.Epochs") {
			t.Errorf("acquire: %v", err)
		}
		for _, st := range admin.Of(l).Status(t.Context()) {
			if st.Err != nil || st.Epoch != before {
				t.Errorf("%s: epoch %d; want %d; %v", st.Name, st.Epoch, before, st.Err)
			}
		}
		leased(t, locker(t, cfg), "r")
		if after := store.last.Load(); after != before+1 {
			t.Errorf("epoch %d after %d", after, before)
		}
	})
}

// A fence that is far above the nodes' epoch, because a writer presented a token without a grant, costs no epoch of
// the group.
func TestAFenceFarAboveTheEpochUsesUpNoEpochs(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fence, want fence.Token // want 0: there is no token left
	}{
		"the last token":                   {fence: 1<<53 - 1},
		"one before it":                    {fence: 1<<53 - 2, want: 1<<53 - 1},
		"the last token of a later epoch":  {fence: 1<<40 - 1, want: 1<<40 + 1},
		"before the last of a later epoch": {fence: 1<<40 - 2, want: 1<<40 - 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg, _ := inMemory(t, 3)
				store := &epochs{}
				fences := &register{}
				cfg.Epochs, cfg.Armer = store, fences
				l := started(t, cfg)
				fences.tokens = map[string]fence.Token{"minted": test.fence}
				before := store.last.Load()
				if test.want > 0 {
					lease := leased(t, l, "minted")
					if got := token(t, lease); got != test.want {
						t.Errorf("token %d; want %d", got, test.want)
					}
					must(t, lease.Release(t.Context()))
				}
				for range 3 {
					lease, err := l.TryAcquire(t.Context(), "minted")
					switch {
					case test.fence < 1<<40:
						must(t, err)
						must(t, lease.Release(t.Context()))
					case !errors.Is(err, fence.ErrInvalid) || !strings.Contains(err.Error(), "another resource name"):
						t.Errorf("got %v", err)
					}
				}
				if after := store.last.Load(); after != before {
					t.Errorf("epoch %d after %d", after, before)
				}
				leased(t, l, "other")
			})
		})
	}
}

// Otherwise a sweep would raise all resources to it, and no epoch would be left to admit a lost node with.
func TestASweepRaisesNoResourceToAFenceFarAboveTheEpoch(t *testing.T) {
	t.Parallel()
	for name, made := range map[string]fence.Token{
		"in the lower half of the last epoch": (1<<21-1)<<32 + 5,
		"in its upper half":                   1<<53 - 8,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg, nodes := inMemory(t, 3)
				fences := &register{}
				cfg.Epochs, cfg.Armer = &epochs{}, fences
				l := started(t, cfg)
				fences.tokens = map[string]fence.Token{"minted": made}
				must(t, leased(t, l, "other").Release(t.Context()))
				lease := leased(t, l, "minted")
				last := token(t, lease)
				must(t, lease.Release(t.Context()))
				synctest.Wait()
				if n, err := admin.Of(l).Sweep(t.Context()); err != nil || n == 0 {
					t.Errorf("swept %d counters, %v", n, err)
				}
				for i, n := range nodes {
					kept := n.Client(t).HGet(t.Context(), lock.DefaultKeyPrefix+":h", "c:minted").Val()
					if counted, err := strconv.ParseInt(kept, 10, 64); err != nil || fence.Token(counted) < last {
						t.Errorf("node %d has counted to %q; the last token is %d", i+1, kept, last)
					}
				}
				must(t, nodes[1].Client(t).FlushAll(t.Context()).Err())
				must(t, admin.Of(l).Admit(t.Context(), "node-2"))
				for _, resource := range []string{"other", "minted"} {
					if got := token(t, leased(t, l, resource)); (got > last) != (resource == "minted") {
						t.Errorf("%s: token %d", resource, got)
					}
				}
			})
		})
	}
}

// After fence.invalidate_all all fences are above the nodes' epoch. Counters that follow them are swept in a new one.
func TestManyCountersAboveTheEpochAreSwept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 1)
		store := &epochs{}
		cfg.Epochs, cfg.Armer = store, &register{}
		l := started(t, cfg)
		store.last.Store(9)
		const followed fence.Token = 8<<32 + 7 // of epoch 8
		var counters []string
		for i := range 50_001 {
			counters = append(counters, fmt.Sprintf("c:jobs/%d", i), strconv.FormatInt(int64(followed), 10))
		}
		nodes[0].Mini().HSet(lock.DefaultKeyPrefix+":h", counters...)
		if n, err := admin.Of(l).Sweep(t.Context()); err != nil || n != 50_001 {
			t.Errorf("swept %d counters, %v", n, err)
		}
		if got := token(t, leased(t, l, "jobs/1")); got <= followed {
			t.Errorf("token %d", got)
		}
	})
}

// A sweep leaves no counters, but the group counts as used: an empty node of it may have held a lease.
func TestInitLeavesASweptGroupsEmptyNodeAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		l := started(t, cfg)
		leased(t, l, "r")
		synctest.Wait()
		_, err := admin.Of(l).Sweep(t.Context())
		must(t, err)
		must(t, nodes[0].Client(t).FlushAll(t.Context()).Err())
		must(t, admin.Of(locker(t, cfg)).Init(t.Context()))
		if admin.Of(l).Status(t.Context())[0].Admitted {
			t.Error("admitted without quarantine")
		}
	})
}

func TestAConfigurationOutOfBoundsIsRefused(t *testing.T) {
	t.Parallel()
	good := nodesAt("127.0.0.1:1")
	for field, configs := range map[string][]lock.Config{
		"nodes":        {{}, {Nodes: nodesAt("127.0.0.1:1", "127.0.0.1:2")}, {Nodes: make([]lock.Node, 16)}, {Nodes: nodesAt("")}, {Nodes: nodesAt("127.0.0.1:1", "127.0.0.1:1")}},
		"drift factor": {{Nodes: good, DriftFactor: math.NaN()}, {Nodes: good, DriftFactor: -0.1}, {Nodes: good, DriftFactor: 0.6}},
		"node timeout": {{Nodes: good, NodeTimeout: -1}, {Nodes: good, NodeTimeout: time.Microsecond}},
		"max ttl":      {{Nodes: good, MaxTTL: -1}, {Nodes: good, MaxTTL: 25 * time.Hour}},
		"ttl":          {{Nodes: good, DefaultTTL: -1}, {Nodes: good, MaxTTL: time.Second, DefaultTTL: 2 * time.Second}},
		"holder":       {{Nodes: good, Holder: "a\x1b[2J"}},
	} {
		for i, cfg := range configs {
			var invalid *fence.InvalidError
			if _, err := lock.New(cfg); !errors.As(err, &invalid) || invalid.Field != field {
				t.Errorf("%s, %d: %v", field, i+1, err)
			}
		}
	}
}

// Two nodes are worse than one, and the error says so. Four tolerate as many failures as three, so a group that
// shrank from five works.
func TestTwoNodesAreRefusedAndFourAreNot(t *testing.T) {
	t.Parallel()
	_, err := lock.New(lock.Config{Nodes: nodesAt("127.0.0.1:1", "127.0.0.1:2")})
	if err == nil || !strings.Contains(err.Error(), "nodes are two") || !strings.Contains(err.Error(), "use 1, 3 or 5") {
		t.Errorf("two: %v", err)
	}
	if _, err := lock.New(lock.Config{Nodes: nodesAt("127.0.0.1:1", "127.0.0.1:1")}); err == nil || !strings.Contains(err.Error(), " twice; each") {
		t.Errorf("one of them twice: %v", err)
	}
	l, err := lock.New(lock.Config{Nodes: nodesAt("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3", "127.0.0.1:4")})
	if err != nil {
		t.Fatalf("four: %v", err)
	}
	must(t, l.Close())
}
