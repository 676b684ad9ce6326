package lock_test

import (
	"errors"
	"testing"
	"time"

	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/lock"
)

// A best-effort node that is parked is best effort still: its own Lockers see it so, strict ones are refused, and its restart
// is admitted as best effort.
func TestAParkedNodeIsBestEffortStill(t *testing.T) {
	t.Parallel()
	cfg, servers, _ := bestEffort(t, 1, redisserver.Config{AppendOnly: redisserver.Always})
	strict := cfg
	strict.BestEffort = false
	l, lease := parked(t, cfg)
	other := locker(t, strict)
	refused := func(when string) {
		t.Helper()
		if _, err := other.AdmitBegin(t.Context(), "node-1"); !errors.Is(err, lock.ErrMode) {
			t.Errorf("%s: a strict process admits it: %v", when, err)
		}
	}
	is := func() lock.NodeStatus { return status(t, l)[0] }
	if st := is(); st.Err != nil || !st.Parked || !st.BestEffort {
		t.Errorf("parked: %+v", st)
	}
	must(t, l.Mark(t.Context(), true)) // it is that
	if st := is(); !st.Parked {
		t.Errorf("marked as it was: %+v", st)
	}
	refused("parked")
	must(t, servers[0].Kill())
	must(t, l.Close()) // which would admit it
	must(t, servers[0].Restart(t.Context()))
	refused("restarted")
	l = locker(t, cfg)
	readmit(t, l, "node-1")
	if st := is(); !st.Admitted || !st.BestEffort {
		t.Errorf("admitted: %+v", st)
	}
	refused("admitted")
	if _, err := l.TryAcquire(t.Context(), "r"); !errors.Is(err, lock.ErrHeld) {
		t.Errorf("acquire what is held: %v", err)
	}
	lease.ReleaseAsync()
}

// A durable node that is parked is durable still once it is back: its next restart, which nobody announced, is admitted at once.
func TestAParkedNodeIsDurableStill(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 1, redisserver.Config{AppendOnly: redisserver.Always})
	cfg.Epochs, cfg.Nodes[0].Durable = &fences{}, true
	l, lease := parked(t, cfg)
	for range 2 {
		restart(t, servers[0], nil)
		readmit(t, l, "node-1")
	}
	if _, err := locker(t, cfg).TryAcquire(t.Context(), "r"); !errors.Is(err, lock.ErrHeld) {
		t.Errorf("acquire what is held: %v", err)
	}
	release(t, lease)

	// Taken back with other settings it is not, whatever they are later.
	must(t, l.Park(t.Context(), "node-1"))
	must(t, client(t, servers[0].Addr).ConfigSet(t.Context(), "appendfsync", "everysec").Err())
	readmit(t, l, "node-1")
	must(t, client(t, servers[0].Addr).ConfigSet(t.Context(), "appendfsync", "always").Err())
	restart(t, servers[0], nil)
	quarantined(t, l)
}

// What a durable node was while it was best effort, when two may have held, proves nothing once it is strict.
func TestAMarkedNodeIsNotDurable(t *testing.T) {
	t.Parallel()
	cfg, servers, _ := bestEffort(t, 1, redisserver.Config{AppendOnly: redisserver.Always})
	cfg.Nodes[0].Durable = true
	strict := cfg
	strict.BestEffort, strict.Armer = false, nil // admits nothing by itself
	l := started(t, cfg)
	older := acquire(t, l, "r", lock.WithTTL(time.Hour))
	admin := client(t, servers[0].Addr)
	must(t, admin.FlushAll(t.Context()).Err())
	newer := acquire(t, l, "r")
	if _, err := older.Grant(); err != nil {
		t.Fatalf("one holds only, so this test shows nothing: %v", err)
	}
	if !admin.HExists(t.Context(), cfg.KeyPrefix+":h", "@durable").Val() {
		t.Fatal("it was not durable: this test shows nothing")
	}
	release(t, newer)
	must(t, l.Mark(t.Context(), false))
	quarantined(t, locker(t, strict))
}

// A node that was parked and is marked then has no nonce that lets it in.
func TestAMarkedNodeIsNotParked(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 1, redisserver.Config{AppendOnly: redisserver.Always})
	cfg.Epochs = &epochs{}
	l, _ := parked(t, cfg)
	must(t, l.Mark(t.Context(), true))
	must(t, l.Mark(t.Context(), false))
	if st := status(t, l)[0]; st.Parked || st.Admitted {
		t.Errorf("%+v", st)
	}
	restart(t, servers[0], nil)
	quarantined(t, l)
}
