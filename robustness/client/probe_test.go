package client

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/robustness/history"
)

// damaged is a memory whose registers can't be read.
type damaged struct {
	*memory

	grants int  // how many leases it gives
	whole  bool // asked for by the last acquisition
}

type damagedAccess struct{ access }

func (damagedAccess) read(context.Context, string) (saw, wrong string, err error) {
	return "", "", errors.New("InternalError")
}

func (d *damaged) acquire(ctx context.Context, a ask) (holding, error) {
	d.whole = a.whole
	if d.grants == 0 {
		return holding{}, failed(history.Refused, "held", errors.New("held"))
	}
	d.grants--
	h, err := d.memory.acquire(ctx, a)
	return holding{h.term, damagedAccess{h.access}}, err
}

// audit audits one resource. It returns how long that took, how many acquisitions were refused, and the error.
func (d *damaged) audit(t *testing.T) (took time.Duration, refused int, failed error) {
	t.Helper()
	cfg := Config{
		Workers: 1, MaxTTL: time.Second, History: filepath.Join(t.TempDir(), "history"), Gateways: []Gateway{{API: "http://127.0.0.1:1"}},
	}
	p, err := start(cfg, []*surface{{name: "memory", registers: row, acquire: d.acquire}})
	if err != nil {
		t.Fatal(err)
	}
	prober, began := &Prober{p}, time.Now()
	failed = prober.Audit(t.Context(), 1, "memory", "r")
	took = time.Since(began)
	if err := prober.Close(); err != nil {
		t.Fatal(err)
	}
	ops, err := (&history.Reader{Path: cfg.History}).Next()
	if err != nil {
		t.Fatal(err)
	}
	for _, op := range ops {
		if op.Action == history.Acquire && op.Outcome == history.Refused {
			refused++
		}
	}
	return took, refused, failed
}

// A read that failed counts whatever the later tries say, and its lease is in nobody's way.
func TestAnAuditSaysWhatItCouldNotRead(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		grants     int
		unreadable bool
		refused    bool
	}{
		"always unreadable":           {1000, true, false},
		"first unreadable, then held": {1, true, true},
		"always held":                 {0, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := &damaged{memory: &memory{dice: newDice(1, 7), at: map[string]*shelf{}}, grants: c.grants}
				took, refused, err := d.audit(t)
				if err == nil || errors.Is(err, ErrUnreadable) != c.unreadable || took < auditTime || !d.whole {
					t.Errorf("after %v: %v; whole %v", took, err, d.whole)
				}
				if (refused > 0) != c.refused {
					t.Errorf("%d acquisitions were refused", refused)
				}
			})
		})
	}
}

func TestAClientThatCannotStartSaysWhy(t *testing.T) {
	t.Parallel()
	cfg := Config{Workers: 1, Surfaces: []string{"none"}, History: filepath.Join(t.TempDir(), "history"), Gateways: []Gateway{{API: "http://127.0.0.1:1"}}}
	if _, err := NewProber(cfg); err == nil || err.Error() != `no surface is called "none"` {
		t.Error(err)
	}
}
