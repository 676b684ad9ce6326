package lock_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
)

// records is a LongestStore in memory.
type records struct {
	epochs

	mu     sync.Mutex
	is     fence.LongestTTL
	kept   map[string]bool
	before func(atLeast time.Duration) error // called before each raise, if set
	after  func(atLeast time.Duration)       // called after it is recorded
}

var _ lock.LongestStore = (*records)(nil)

func (r *records) RaiseLongest(_ context.Context, group string, atLeast time.Duration) (fence.LongestTTL, error) {
	r.mu.Lock()
	before, after := r.before, r.after
	r.mu.Unlock()
	if before != nil {
		if err := before(atLeast); err != nil {
			return fence.LongestTTL{}, err
		}
	}
	r.mu.Lock()
	if r.is.Record == 0 {
		r.is.Record = 1
	}
	r.is.TTL = max(r.is.TTL, atLeast)
	said := fence.LongestTTL{TTL: r.is.TTL, Record: r.is.Record, Kept: r.kept[group]}
	r.mu.Unlock()
	if after != nil {
		after(atLeast)
	}
	return said, nil
}

func (r *records) KeepLongest(_ context.Context, group string, record int64, kept bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.is.Record == record {
		if r.kept == nil {
			r.kept = make(map[string]bool)
		}
		r.kept[group] = kept
	}
	return nil
}

// anew begins a new record, as PostgreSQL does if the old one may be too low.
func (r *records) anew() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.is, r.kept = fence.LongestTTL{Record: r.is.Record + 1}, nil
}

func (r *records) counts() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Equal(slices.Collect(maps.Values(r.kept)), []bool{true})
}

func (r *records) hooks(before func(time.Duration) error, after func(time.Duration)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.before, r.after = before, after
}

// brief is a configuration of n nodes of this test whose leases last two seconds, and may last five minutes.
func brief(t *testing.T, n int, server redisserver.Config) (lock.Config, []*redisserver.Server, *records) {
	t.Helper()
	cfg, servers := own(t, n, server)
	kept := &records{}
	cfg.DefaultTTL, cfg.Armer, cfg.Epochs = 2*time.Second, &register{}, kept
	return cfg, servers, kept
}

// alone acquires a resource, and fails if that happened before another's lease was over.
func alone(t *testing.T, l *lock.Locker, first *lock.Lease, opts ...lock.AcquireOption) *lock.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	second, err := l.Acquire(ctx, first.Ref().Resource, opts...)
	for errors.Is(err, lock.ErrLost) && ctx.Err() == nil { // its own TTL ran out meanwhile
		second, err = l.Acquire(ctx, first.Ref().Resource, opts...)
	}
	if err != nil {
		t.Fatal(err)
	}
	if left := time.Until(first.Deadline()); left > 0 {
		t.Errorf("a second lease %v before the first was over", left)
	}
	return second
}

// acquireLonger acquires a resource for a TTL that may have to be recorded first. That fails where the nodes are late.
func acquireLonger(t *testing.T, l *lock.Locker, resource string, ttl time.Duration) *lock.Lease {
	t.Helper()
	lease, err := tryAcquire(t, l, resource, lock.WithTTL(ttl))
	must(t, err)
	return lease
}

func maxTTLs(t *testing.T, l *lock.Locker) []time.Duration {
	t.Helper()
	var all []time.Duration
	for _, st := range status(t, l) {
		all = append(all, st.MaxTTL)
	}
	return all
}

// longQuarantine begins to admit the first node, and fails unless its quarantine lasts as long as any lease may.
func longQuarantine(t *testing.T, l *lock.Locker) lock.Admission {
	t.Helper()
	begun, err := admitBegin(t, l, "node-1")
	must(t, err)
	l.Aged(&begun)
	if err := admitEnd(t, l, begun); !errors.Is(err, lock.ErrQuarantined) {
		t.Errorf("admit: %v", err)
	}
	if left := status(t, l)[0].Quarantine; left < 4*time.Minute {
		t.Errorf("the quarantine lasts %v", left)
	}
	return begun
}

func TestAfterTheLossOfTheOnlyNodeAQuarantineLastsTheLongestTTLInUse(t *testing.T) {
	t.Parallel()
	for name, loss := range losses {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg, servers, _ := brief(t, 1, loss.server)
			l := started(t, cfg)
			first := acquire(t, l, "r")
			lost := time.Now()
			loss.lose(t, servers[0], client(t, servers[0].Addr))
			second := alone(t, locker(t, cfg), first)
			if took := time.Since(lost); took > 30*time.Second {
				t.Errorf("the next lease came after %v", took)
			}
			release(t, second)
		})
	}
}

// One process knows only of short leases. Another one has since recorded a longer one, and granted it.
func TestAQuarantineIsReadAfterTheLoss(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 3} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			cfg, servers, _ := brief(t, n, redisserver.Config{})
			l := started(t, cfg)
			release(t, acquire(t, l, "r"))
			other := locker(t, cfg)
			first := acquireLonger(t, other, "r", 10*time.Second)
			must(t, other.Close())
			for _, s := range servers {
				must(t, client(t, s.Addr).FlushAll(t.Context()).Err())
			}
			release(t, alone(t, l, first))
		})
	}
}

func TestALongerTTLIsRecordedBeforeANodeGrantsIt(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 3} {
		cfg, servers, kept := brief(t, n, redisserver.Config{})
		cfg.DefaultTTL = 30 * time.Second
		l := started(t, cfg)
		short := acquire(t, l, "short")
		kept.hooks(func(time.Duration) error { return errors.New("PostgreSQL is away") }, nil)
		_, acquired := tryAcquire(t, l, "r", lock.WithTTL(50*time.Second))
		for what, err := range map[string]error{"acquire": acquired, "extend": short.Extend(t.Context(), 50*time.Second)} {
			if !errors.Is(err, lock.ErrNotRecorded) || !strings.Contains(err.Error(), "PostgreSQL is away") {
				t.Errorf("%d nodes: %s: %v", n, what, err)
			}
		}
		for i, s := range servers {
			if found := client(t, s.Addr).Exists(t.Context(), cfg.KeyPrefix+":lock:r").Val(); found != 0 || maxTTLs(t, l)[i] != cfg.DefaultTTL {
				t.Errorf("%d nodes: %s has %d locks, and grants %v", n, cfg.Nodes[i].Name, found, maxTTLs(t, l)[i])
			}
		}
		release(t, acquire(t, l, "another")) // shorter TTLs still work
		var atRaise []time.Duration
		kept.hooks(func(atLeast time.Duration) error {
			if atLeast > cfg.DefaultTTL && len(atRaise) == 0 { // a repeated call finds nodes that know of the first
				atRaise = append(atRaise, maxTTLs(t, l)...)
			}
			return nil
		}, nil)
		lease := acquireLonger(t, l, "r", 50*time.Second)
		for _, most := range atRaise {
			if most != cfg.DefaultTTL {
				t.Errorf("%d nodes: a node granted %v before that was recorded", n, most)
			}
		}
		if len(atRaise) == 0 {
			t.Errorf("%d nodes: granted, though nothing was recorded", n)
		}
		must(t, lease.Extend(t.Context(), 50*time.Second))
		must(t, patiently(t.Context(), func() error { return lease.Extend(t.Context(), 2*time.Minute) }))
		release(t, lease)
	}
}

// A process that dies, or loses its connection, between the record and the nodes leaves no quarantine that is too
// short.
func TestARecordThatNoNodeHeardOfIsMadeGoodByTheNextAcquisition(t *testing.T) {
	t.Parallel()
	testenv.Paced(t, 2*time.Second, func(time.Duration) error {
		cfg, _, kept := brief(t, 3, redisserver.Config{})
		cfg.Armer = nil // the nodes are not admitted automatically
		l := started(t, cfg)
		dying := locker(t, cfg)
		ctx, cancel := context.WithCancel(t.Context())
		kept.hooks(nil, func(time.Duration) { cancel() })
		err := patiently(ctx, func() error { _, err := dying.TryAcquire(ctx, "r", lock.WithTTL(6*time.Second)); return err })
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("got %v", err)
		}
		kept.hooks(nil, nil)
		if all := maxTTLs(t, l); all[0] != 2*time.Second {
			t.Fatalf("the nodes grant %v: this test shows nothing", all)
		}
		release(t, acquireLonger(t, l, "r", 6*time.Second))
		if all := maxTTLs(t, l); all[0] != 10*time.Second || all[1] != all[0] || all[2] != all[0] {
			return fmt.Errorf("the nodes grant %v", all) // one may have been late
		}
		return nil
	})
}

// Without a record a quarantine lasts MaxTTL.
func TestAQuarantineWithoutARecordLastsTheLongestTTLThatIsAllowed(t *testing.T) {
	t.Parallel()
	for name, forget := range map[string]func(cfg *lock.Config, kept *records){
		"a store without one":       func(cfg *lock.Config, kept *records) { cfg.Epochs = &kept.epochs },
		"a record that began anew":  func(_ *lock.Config, kept *records) { kept.anew() },
		"a record of other nodes":   func(_ *lock.Config, kept *records) { kept.kept = map[string]bool{"others": true} },
		"a record that nobody kept": func(_ *lock.Config, kept *records) { kept.kept = nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var cfg lock.Config
			var servers []*redisserver.Server
			var kept *records
			testenv.Paced(t, 2*time.Second, func(time.Duration) error {
				cfg, servers, kept = brief(t, 1, redisserver.Config{})
				cfg.Armer = nil
				release(t, acquire(t, started(t, cfg), "r"))
				if !kept.counts() { // the node may have been late
					return errors.New("the record does not count: this test shows nothing")
				}
				return nil
			})
			must(t, client(t, servers[0].Addr).FlushAll(t.Context()).Err())
			forget(&cfg, kept)
			l := locker(t, cfg)
			begun := longQuarantine(t, l)
			must(t, l.EndQuarantine(t.Context(), "node-1"))
			must(t, admitEnd(t, l, begun))
		})
	}
}

// Nodes admitted earlier may have granted more than the record says, so it counts only once each was admitted under
// it.
func TestARecordCountsOnceEveryNodeWasAdmittedUnderIt(t *testing.T) {
	t.Parallel()
	testenv.Paced(t, 2*time.Second, func(time.Duration) error {
		cfg, servers, kept := brief(t, 3, redisserver.Config{})
		cfg.Armer, cfg.Epochs = nil, &epochs{}
		if all := maxTTLs(t, started(t, cfg)); all[0] != lock.DefaultMaxTTL {
			t.Fatalf("without a record the nodes grant %v", all)
		}
		cfg.Epochs = kept
		l := locker(t, cfg)
		for i, s := range servers {
			if kept.counts() {
				t.Fatalf("the record counts after %d of 3 nodes", i)
			}
			must(t, client(t, s.Addr).FlushAll(t.Context()).Err())
			admit(t, l, cfg.Nodes[i].Name)
		}
		if !kept.counts() {
			return errors.New("the record does not count") // a node may have been late
		}
		if all := maxTTLs(t, l); all[0] != 2*time.Second || all[1] != all[0] || all[2] != all[0] {
			t.Errorf("the nodes grant %v", all)
		}
		return nil
	})
}

// A Locker without a record can't raise it, so a node that it admits grants what the others do.
func TestALockerWithoutARecordKeepsToTheOthersMaximum(t *testing.T) {
	t.Parallel()
	testenv.Paced(t, 2*time.Second, func(time.Duration) error {
		cfg, servers, kept := brief(t, 3, redisserver.Config{})
		cfg.Armer = nil
		started(t, cfg)
		cfg.Epochs = nil // for this Locker the nodes keep the epoch
		l := locker(t, cfg)
		must(t, client(t, servers[1].Addr).FlushAll(t.Context()).Err())
		admit(t, l, "node-2")
		if all := maxTTLs(t, l); all[1] != 2*time.Second {
			return fmt.Errorf("the nodes grant %v", all) // the others may have been late
		}
		_, err := tryAcquire(t, l, "r", lock.WithTTL(6*time.Second))
		if !errors.Is(err, fence.ErrInvalid) || !strings.Contains(err.Error(), "Config.Epochs") {
			t.Errorf("a TTL of 6s: %v", err)
		}
		release(t, acquire(t, l, "r", lock.WithTTL(2*time.Second)))
		if !kept.counts() {
			return errors.New("the record does not count any more") // or never did, where a node was late
		}
		return nil
	})
}
