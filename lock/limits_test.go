package lock_test

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/lock"
)

// lastOfEpoch is the highest token of the first epoch.
const lastOfEpoch fence.Token = 1<<32 - 1

// use sets a resource's counter on every node.
func use(t *testing.T, cfg lock.Config, resource string, token fence.Token) {
	t.Helper()
	for _, node := range cfg.Nodes {
		must(t, client(t, node.Addr).HSet(t.Context(), cfg.KeyPrefix+":h", "c:"+resource, strconv.FormatInt(int64(token), 10)).Err())
	}
}

func TestAResourceThatUsedUpItsTokensGoesOnInTheNextEpoch(t *testing.T) {
	t.Parallel()
	for name, store := range map[string]lock.EpochStore{"with an epoch store": &epochs{}, "without": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := shared(t, 3)
			started(t, cfg)
			cfg.Epochs = store
			l := locker(t, cfg)
			resource := ""
			var lease *lock.Lease
			must(t, patiently(t.Context(), func() (err error) {
				resource += "r" // a late answer may have raised the counters of the one before
				use(t, cfg, resource, lastOfEpoch-1)
				lease, err = l.TryAcquire(t.Context(), resource)
				return err
			}))
			if got := token(t, lease); got != lastOfEpoch {
				t.Fatalf("token %d", got)
			}
			release(t, lease)
			lease = acquire(t, l, resource)
			if got := token(t, lease); got <= lastOfEpoch {
				t.Fatalf("token %d", got)
			}
			release(t, lease)
		})
	}
}

// A sweep raises every resource to the one that was used most. Near the end of an epoch that would use up all tokens.
func TestASweepNearTheEndOfAnEpochLeavesTokensForAll(t *testing.T) {
	t.Parallel()
	cfg := shared(t, 3)
	l := started(t, cfg)
	use(t, cfg, "r", lastOfEpoch)
	_, err := sweep(t, l)
	must(t, err)
	for range 3 {
		lease := acquire(t, l, "other")
		if got := token(t, lease); got <= lastOfEpoch {
			t.Fatalf("token %d", got)
		}
		release(t, lease)
	}
}

// A Locker without the group's epoch store does not start an epoch that the store would allocate again.
func TestASweepWithoutTheEpochStoreStartsNoEpoch(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 1, redisserver.Config{})
	cfg.MaxTTL, cfg.DefaultTTL = time.Second, time.Second
	plain := cfg
	cfg.Epochs = &epochs{}
	l := started(t, cfg)
	use(t, cfg, "r", 1<<32+1<<31+5)
	_, err := sweep(t, locker(t, plain))
	must(t, err)
	var last fence.Token
	rises := func() {
		t.Helper()
		for range 3 {
			lease := acquire(t, l, "r")
			got := token(t, lease)
			if got <= last {
				t.Errorf("token %d after %d", got, last)
			}
			last = got
			release(t, lease)
		}
	}
	rises()
	must(t, client(t, servers[0].Addr).FlushAll(t.Context()).Err())
	readmit(t, l, "node-1")
	rises()
}

// Nodes that were admitted with a record of PostgreSQL say that it keeps the epoch.
func TestNodesWhoseEpochPostgreSQLKeepsStartNone(t *testing.T) {
	t.Parallel()
	cfg := shared(t, 3)
	plain := cfg
	store := &epochs{}
	cfg.Epochs = store
	started(t, cfg)
	before := store.last.Load()
	l := locker(t, plain)
	use(t, cfg, "r", fence.Token(before)<<32+1<<31+5)
	_, err := sweep(t, l)
	must(t, err)
	use(t, cfg, "r", fence.Token(before)<<32+lastOfEpoch)
	if _, err := tryAcquire(t, l, "r"); !errors.Is(err, lock.ErrExhausted) || !strings.Contains(err.Error(), "Config.Epochs") {
		t.Errorf("acquire: %v", err)
	}
	for _, st := range status(t, l) {
		if st.Epoch != before {
			t.Errorf("%s: epoch %d; want %d", st.Name, st.Epoch, before)
		}
	}
	release(t, acquire(t, locker(t, cfg), "r"))
	if after := store.last.Load(); after != before+1 {
		t.Errorf("epoch %d after %d", after, before)
	}
}

// minted acquires a resource whose fence stands at a token, in one try.
func minted(t *testing.T, l *lock.Locker, fences *register, at fence.Token) (lease *lock.Lease) {
	t.Helper()
	resource := ""
	must(t, patiently(t.Context(), func() (err error) {
		resource += "m" // a late answer may have raised the counters of the one before
		fences.mu.Lock()
		fences.tokens[resource] = at
		fences.mu.Unlock()
		lease, err = l.TryAcquire(t.Context(), resource)
		return err
	}))
	return lease
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
			cfg := shared(t, 3)
			store := &epochs{}
			fences := &register{tokens: map[string]fence.Token{"minted": test.fence}}
			cfg.Epochs, cfg.Armer = store, fences
			l := started(t, cfg)
			before := store.last.Load()
			resource := "minted"
			if test.want > 0 {
				lease := minted(t, l, fences, test.fence)
				resource = lease.Ref().Resource
				if got := token(t, lease); got != test.want {
					t.Errorf("token %d; want %d", got, test.want)
				}
				release(t, lease)
			}
			for range 3 {
				lease, err := l.Acquire(t.Context(), resource)
				switch {
				case test.fence < 1<<40:
					must(t, err)
					release(t, lease)
				case !errors.Is(err, fence.ErrInvalid) || !strings.Contains(err.Error(), "another resource name"):
					t.Errorf("got %v", err)
				}
			}
			if after := store.last.Load(); after != before {
				t.Errorf("epoch %d after %d", after, before)
			}
			release(t, acquire(t, l, "other"))
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
			cfg, servers := own(t, 3, redisserver.Config{})
			fences := &register{tokens: make(map[string]fence.Token)}
			cfg.Epochs, cfg.Armer = &epochs{}, fences
			l := started(t, cfg)
			release(t, acquire(t, l, "other"))
			lease := minted(t, l, fences, made)
			last, counted := token(t, lease), lease.Ref().Resource
			release(t, lease)
			if n, err := sweep(t, l); err != nil || n == 0 {
				t.Errorf("swept %d counters, %v", n, err)
			}
			kept := 0
			for _, s := range servers {
				if client(t, s.Addr).HGet(t.Context(), cfg.KeyPrefix+":h", "c:"+counted).Val() >= strconv.FormatInt(int64(last), 10) {
					kept++
				}
			}
			if kept < 2 {
				t.Errorf("%d nodes know token %d", kept, last)
			}
			restart(t, servers[1], nil)
			readmit(t, l, "node-2")
			for _, resource := range []string{"other", counted} {
				lease := acquire(t, l, resource)
				if got := token(t, lease); (got > last) != (resource == counted) {
					t.Errorf("%s: token %d", resource, got)
				}
				release(t, lease)
			}
		})
	}
}

// After fence.invalidate_all all fences are above the nodes' epoch. Counters that follow them are swept in a new one.
func TestManyCountersAboveTheEpochAreSwept(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 1, redisserver.Config{})
	store := &epochs{}
	cfg.Epochs, cfg.Armer = store, &register{}
	l := started(t, cfg)
	c := client(t, servers[0].Addr)
	store.last.Store(9)
	must(t, c.Eval(t.Context(), `for i = 1, 50001 do
		redis.call('HSET', KEYS[1], 'c:jobs/' .. i, '34359738375')
	end return 1`, []string{cfg.KeyPrefix + ":h"}).Err()) // of epoch 8
	if n, err := sweep(t, l); err != nil || n != 50_001 {
		t.Errorf("swept %d counters, %v", n, err)
	}
	if got := token(t, acquire(t, l, "jobs/1")); got <= 34359738375 {
		t.Errorf("token %d", got)
	}
}

// A sweep leaves no counters, but the group counts as used: an empty node of it may have held a lease.
func TestInitLeavesASweptGroupsEmptyNodeAlone(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 3, redisserver.Config{})
	l := started(t, cfg)
	lease := acquire(t, l, "r", lock.WithTTL(time.Minute))
	_, err := sweep(t, l)
	must(t, err)
	must(t, client(t, servers[0].Addr).FlushAll(t.Context()).Err())
	initialise(t, locker(t, cfg))
	if l.Status(t.Context())[0].Admitted {
		t.Error("admitted without quarantine")
	}
	lease.ReleaseAsync() // the emptied node may have been needed for its quorum
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
