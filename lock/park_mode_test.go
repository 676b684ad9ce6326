package lock_test

import (
	"errors"
	"testing"
	"time"

	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/lock"
)

// A parked best-effort node stays best effort: its own Lockers see it so, strict ones are refused, and after its
// restart it is admitted as best effort.
func TestAParkedNodeIsBestEffortStill(t *testing.T) {
	t.Parallel()
	cfg, servers, _ := bestEffort(t, 1, redisserver.Config{AppendOnly: redisserver.Always})
	strict := cfg
	strict.BestEffort = false
	l, lease := parked(t, cfg)
	other := locker(t, strict)
	refused := func(when string) {
		t.Helper()
		if _, err := admitBegin(t, other, "node-1"); !errors.Is(err, lock.ErrMode) {
			t.Errorf("%s: a strict process admits it: %v", when, err)
		}
	}
	is := func() lock.NodeStatus { return status(t, l)[0] }
	if st := is(); st.Err != nil || !st.Parked || !st.BestEffort {
		t.Errorf("parked: %+v", st)
	}
	mark(t, l, true) // it already is
	if st := is(); !st.Parked {
		t.Errorf("marked as it was: %+v", st)
	}
	refused("parked")
	must(t, servers[0].Kill())
	must(t, l.Close()) // it would admit the node
	must(t, servers[0].Restart(t.Context()))
	refused("restarted")
	l = locker(t, cfg)
	readmit(t, l, "node-1")
	if st := is(); !st.Admitted || !st.BestEffort {
		t.Errorf("admitted: %+v", st)
	}
	refused("admitted")
	if _, err := tryAcquire(t, l, "r"); !errors.Is(err, lock.ErrHeld) {
		t.Errorf("acquire what is held: %v", err)
	}
	lease.ReleaseAsync()
}

// A durable node that was parked stays durable: it is admitted at once after its next unannounced restart, too.
func TestAParkedNodeIsDurableStill(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 1, redisserver.Config{AppendOnly: redisserver.Always})
	cfg.Epochs, cfg.Nodes[0].Durable = &fences{}, true
	l, lease := parked(t, cfg)
	for range 2 {
		restart(t, servers[0], nil)
		readmit(t, l, "node-1")
	}
	if _, err := tryAcquire(t, locker(t, cfg), "r"); !errors.Is(err, lock.ErrHeld) {
		t.Errorf("acquire what is held: %v", err)
	}
	release(t, lease)

	// Admitted again with other settings it is no longer durable, whatever the settings are later.
	park(t, l)
	must(t, client(t, servers[0].Addr).ConfigSet(t.Context(), "appendfsync", "everysec").Err())
	readmit(t, l, "node-1")
	must(t, client(t, servers[0].Addr).ConfigSet(t.Context(), "appendfsync", "always").Err())
	restart(t, servers[0], nil)
	quarantined(t, l)
}

// A node's durability under best effort, when two holders were possible, proves nothing once it is strict.
func TestAMarkedNodeIsNotDurable(t *testing.T) {
	t.Parallel()
	cfg, servers, _ := bestEffort(t, 1, redisserver.Config{AppendOnly: redisserver.Always})
	cfg.Nodes[0].Durable = true
	strict := cfg
	strict.BestEffort, strict.Armer = false, nil // does not admit automatically
	l := started(t, cfg)
	older := acquire(t, l, "r", lock.WithTTL(time.Hour))
	admin := client(t, servers[0].Addr)
	var newer *lock.Lease
	eventually(t, 20*time.Second, "it is durable", func() bool { // an admission asks for a second whether it is
		must(t, admin.FlushAll(t.Context()).Err())
		newer = acquire(t, l, "r")
		return admin.HExists(t.Context(), cfg.KeyPrefix+":h", "@durable").Val()
	})
	if _, err := older.Grant(); err != nil {
		t.Fatalf("one holds only, so this test shows nothing: %v", err)
	}
	release(t, newer)
	mark(t, l, false)
	quarantined(t, locker(t, strict))
}

// A parked node that is then marked has no nonce that would admit it.
func TestAMarkedNodeIsNotParked(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 1, redisserver.Config{AppendOnly: redisserver.Always})
	cfg.Epochs = &epochs{}
	l, _ := parked(t, cfg)
	mark(t, l, true)
	mark(t, l, false)
	if st := status(t, l)[0]; st.Parked || st.Admitted {
		t.Errorf("%+v", st)
	}
	restart(t, servers[0], nil)
	quarantined(t, l)
}
