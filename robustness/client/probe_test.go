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
	if d.grants--; d.grants < 0 {
		return holding{}, failed(history.Refused, "held", errors.New("held"))
	}
	h, err := d.memory.acquire(ctx, a)
	return holding{h.term, damagedAccess{h.access}}, err
}

// A read that failed counts whatever the later tries say, and its lease is in nobody's way.
func TestAnAuditSaysWhatItCouldNotRead(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		grants              int
		unreadable, refused bool
	}{
		"always unreadable":           {1000, true, false},
		"first unreadable, then held": {1, true, true},
		"always held":                 {0, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := &damaged{memory: &memory{dice: newDice(1, 7), at: map[string]*shelf{}}, grants: c.grants}
				p, err := start(Config{
					Workers: 1, MaxTTL: time.Second, History: filepath.Join(t.TempDir(), "history"), Gateways: []Gateway{{API: "http://127.0.0.1:1"}},
				}, []*surface{{name: "memory", registers: row, acquire: d.acquire}})
				must(t, err)
				prober, began := &Prober{p}, time.Now()
				err = prober.Audit(t.Context(), 1, "memory", "r")
				if took := time.Since(began); err == nil || errors.Is(err, ErrUnreadable) != c.unreadable || took < auditTime || !d.whole {
					t.Errorf("after %v: %v; whole %v", took, err, d.whole)
				}
				if refused := p.counts["audit memory acquire refused"]; (refused > 0) != c.refused {
					t.Errorf("%d acquisitions were refused", refused)
				}
				must(t, prober.Close())
			})
		})
	}
}

func TestAClientThatCannotStartSaysWhy(t *testing.T) {
	t.Parallel()
	cfg := Config{
		Workers: 1, MaxTTL: time.Second, Surfaces: []string{"none"}, History: filepath.Join(t.TempDir(), "history"),
		Gateways: []Gateway{{API: "http://127.0.0.1:1"}},
	}
	if _, err := NewProber(cfg); err == nil || err.Error() != `no surface is called "none"` {
		t.Error(err)
	}
}
