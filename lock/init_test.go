package lock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
)

// A group that was emptied while a lease is held looks like a new one, except for what its servers know of their
// current run.
func TestInitAdmitsNoGroupThatWasEmptiedUnderALease(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 3} {
		cfg, servers := own(t, n, redisserver.Config{})
		first := acquire(t, started(t, cfg), "r", lock.WithTTL(time.Minute))
		for _, s := range servers {
			must(t, client(t, s.Addr).FlushAll(t.Context()).Err())
		}
		second := locker(t, cfg)
		if err := patiently(t.Context(), func() error { return second.Init(t.Context()) }); !errors.Is(err, lock.ErrQuarantined) {
			t.Errorf("%d nodes: init: %v", n, err)
		}
		if again, err := second.TryAcquire(t.Context(), "r"); err == nil {
			t.Errorf("%d nodes: a second lease %v while the first lasts until %v", n, again.Ref(), first.Deadline())
		}
		first.ReleaseAsync()
	}
}

// A group with another prefix or database on the same servers does not count as part of this one.
func TestInitAdmitsANewGroupOnServersThatAreInUse(t *testing.T) {
	t.Parallel()
	cfg, _ := own(t, 3, redisserver.Config{})
	release(t, acquire(t, started(t, cfg), "r"))
	other, db := cfg, cfg
	other.KeyPrefix += "-other"
	db.Nodes = append([]lock.Node(nil), cfg.Nodes...)
	for i := range db.Nodes {
		db.Nodes[i].DB = 1
	}
	for _, cfg := range []lock.Config{other, db} {
		release(t, acquire(t, started(t, cfg), "r"))
	}
}

// recording is an Armer that keeps what Redis loses, as PostgreSQL does.
type recording struct{ register }

var _ leasing.Recorder = (*recording)(nil)

func (r *recording) Raised(context.Context) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.tokens) > 0, nil
}

func TestInitHasAGroupThatWasRestartedEmptyWaitWhereTheFenceRemembers(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 3, redisserver.Config{})
	cfg.Armer, cfg.MaxTTL = &recording{}, 10*time.Second
	l := started(t, cfg)
	first := acquire(t, l, "r", lock.WithTTL(cfg.MaxTTL))
	must(t, l.Close())
	for _, s := range servers {
		must(t, errors.Join(s.Kill(), s.Restart(t.Context())))
	}
	second := locker(t, cfg)
	if err := second.Init(t.Context()); !errors.Is(err, lock.ErrNoQuorum) {
		t.Errorf("init: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	again, err := second.Acquire(ctx, "r") // waits for the quarantine, which started automatically
	if err != nil {
		t.Fatal(err)
	}
	if time.Now().Before(first.Deadline()) {
		t.Errorf("a second lease %v before the first was over", time.Until(first.Deadline()))
	}
	release(t, again)
}

// Readiness checks and requests for leases before the first start begin no quarantine.
func TestWhatIsAskedBeforeAFirstStartBeginsNoQuarantine(t *testing.T) {
	t.Parallel()
	cfg, _ := own(t, 3, redisserver.Config{})
	cfg.Armer = &recording{}
	l := locker(t, cfg)
	if err := ping(t, l); !errors.Is(err, lock.ErrNoQuorum) {
		t.Errorf("ping: %v", err)
	}
	if _, err := l.TryAcquire(t.Context(), "r"); !errors.Is(err, lock.ErrNoQuorum) {
		t.Errorf("acquire: %v", err)
	}
	<-time.After(2 * time.Second) // a lost node's admission would have begun
	initialise(t, l)
	release(t, acquire(t, l, "r"))
}

// If the fence or a node knows of leases, the quarantine starts automatically instead of waiting for a first start.
func TestAUsedGroupIsNotLeftToItsFirstStart(t *testing.T) {
	t.Parallel()
	for name, use := range map[string]func(t *testing.T, cfg lock.Config, kept *recording){
		"the fence": func(t *testing.T, _ lock.Config, kept *recording) {
			must(t, kept.Arm(t.Context(), fence.Arming{Resource: "r", Token: 1}))
		},
		"the nodes": func(t *testing.T, cfg lock.Config, _ *recording) {
			cfg.Armer = nil
			release(t, acquire(t, started(t, cfg), "r"))
			for _, n := range cfg.Nodes {
				must(t, client(t, n.Addr).FlushAll(t.Context()).Err()) // a lease left its trace script
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testenv.Paced(t, 8*time.Second, func(time.Duration) error {
				cfg, _ := own(t, 3, redisserver.Config{})
				kept := &recording{}
				cfg.Armer, cfg.Epochs = kept, &epochs{}
				use(t, cfg, kept)
				begun := time.Now()
				l := locker(t, cfg)
				_ = l.Ping(t.Context())
				eventually(t, time.Minute, "a quarantine begins", func() bool { return status(t, l)[0].Quarantine > 0 })
				if took := time.Since(begun); took > 8*time.Second { // a first start has 10 s
					return fmt.Errorf("the quarantine began only after %v", took)
				}
				return nil
			})
		})
	}
}

// away is a recorder that is unavailable.
type away struct{ recording }

func (*away) Raised(context.Context) (bool, error) { return false, errors.New("away") }

func TestInitNeedsNoFenceWhereAQuorumIsAdmitted(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 3, redisserver.Config{})
	acquireEverywhere(t, started(t, cfg), "r", lock.WithTTL(lock.DefaultMaxTTL)) // no emptied node is admitted again meanwhile
	cfg.Armer = &away{}
	l := locker(t, cfg)
	for i, s := range servers {
		must(t, client(t, s.Addr).FlushAll(t.Context()).Err())
		err := l.Init(t.Context())
		if i == 0 { // on a busy machine the others may answer too late
			eventually(t, 20*time.Second, "init", func() bool { err = l.Init(t.Context()); return err == nil })
		}
		if quorum := i == 0; quorum != (err == nil) {
			t.Errorf("%d of 3 nodes are empty: %v", i+1, err)
		}
	}
}

// A snapshot of a first start, from before its node was admitted, proves nothing.
func TestInitTakesNoOldSnapshotForItsOwnBeginning(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 3, redisserver.Config{AppendOnly: redisserver.Always})
	l := started(t, cfg)
	must(t, l.Close())
	admin := client(t, servers[0].Addr)
	must(t, admin.Del(t.Context(), cfg.KeyPrefix+":h").Err())
	must(t, admin.HSet(t.Context(), cfg.KeyPrefix+":h", "@pending", "0123456789abcdef0123456789abcdef").Err())
	restart(t, servers[0], nil)
	second := locker(t, cfg)
	initialise(t, second) // a quorum is there
	if status(t, second)[0].Admitted {
		t.Error("admitted without quarantine")
	}
}

// Beside an admitted node that was never used, empty nodes have lost their data: the first start is long over.
func TestInitTakesNoUsedGroupForNew(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 3, redisserver.Config{})
	initialise(t, locker(t, cfg))
	must(t, servers[2].Freeze())
	l := locker(t, func() lock.Config { c := cfg; c.NodeTimeout = silence; return c }())
	lease := acquire(t, l, "r", lock.WithTTL(5*time.Minute))
	must(t, l.Close()) // no message arrives late
	for _, s := range servers[:2] {
		must(t, errors.Join(s.Kill(), s.Restart(t.Context())))
	}
	must(t, servers[2].Thaw())
	second := locker(t, cfg)
	if err := patiently(t.Context(), func() error { return second.Init(t.Context()) }); !errors.Is(err, lock.ErrQuarantined) {
		t.Errorf("init: %v, while a lease lasts until %v", err, lease.Deadline())
	}
}

// Without a database the nodes keep the epoch. An admission whose quarantine is over, and that was not completed,
// does not look like a first start if the other nodes have an epoch, even without counters.
func TestInitTakesNoLapsedAdmissionForAFirstStart(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 3, redisserver.Config{})
	l := started(t, cfg)
	before := acquire(t, l, "r")
	release(t, before)
	must(t, client(t, servers[2].Addr).HDel(t.Context(), cfg.KeyPrefix+":h", "c:r").Err()) // as if it had never arrived
	restart(t, servers[1], nil)
	admit(t, l, "node-2")
	restart(t, servers[0], nil)
	begun, err := admitBegin(t, l, "node-1")
	must(t, err)
	must(t, l.EndQuarantine(t.Context(), "node-1"))
	second := locker(t, cfg)
	initialise(t, second) // a quorum is there
	if st := status(t, second)[0]; st.Admitted {
		t.Errorf("admitted with epoch %d, after token %d", st.Epoch, before.Ref().Token)
	}
	must(t, admitEnd(t, l, begun))
	after := acquire(t, l, "r")
	if token(t, after) <= before.Ref().Token {
		t.Errorf("token %d after %d", token(t, after), before.Ref().Token)
	}
	release(t, after)
}
