package cluster_test

import (
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencegate/fencegate/robustness/cluster"
	"github.com/fencegate/fencegate/robustness/relay"
)

func failover(t *testing.T, w *world) {
	old := w.Primary()
	w.works("before the failover")
	had := w.values()
	s, err := w.Failover(t.Context(), cluster.Failover{OldUptime: 500 * time.Millisecond})
	must(t, err)
	if w.Primary() == old || s.Primary != w.Primary().Name || s.Timeline != 2 || !strings.Contains(s.LSN, "/") {
		t.Errorf("the switch: %+v", s)
	}
	if got := w.values(); len(got) < len(had) || !slices.Equal(got[:len(had)], had) {
		t.Errorf("effects were lost: %q had been %q", got, had)
	}
	if len(s.Effects) > 0 {
		t.Errorf("lost: %v", s.Effects)
	}
	w.works("after the failover")
	must(t, w.CaughtUp(t.Context()))
}

func failoverBack(t *testing.T, w *world) {
	must(t, w.Primary().Freeze())
	_, err := w.Failover(t.Context(), cluster.Failover{})
	must(t, err)
	w.works("back")
	_, err = w.Failover(t.Context(), cluster.Failover{InOrder: true})
	must(t, err)
}

// Heal completes a failover that could not start the new standby, because its port was taken.
func failoverFailed(t *testing.T, w *world) {
	old := w.Primary()
	taken := make(chan net.Listener, 1)
	go func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for range tick.C {
			if l, err := net.Listen("tcp", old.Addr); err == nil {
				taken <- l
				return
			}
		}
	}()
	if _, err := w.Failover(t.Context(), cluster.Failover{}); err == nil {
		t.Error("there is a new standby")
	}
	must(t, (<-taken).Close())
	if _, err := w.Failover(t.Context(), cluster.Failover{}); !errors.Is(err, cluster.ErrNoStandby) {
		t.Errorf("without a standby: %v", err)
	}
	must(t, w.Heal(t.Context()))
	if w.Standby() != old {
		t.Error("the old primary is no standby")
	}
	must(t, w.CaughtUp(t.Context()))
}

// The failover reports exactly what the standby had not received.
func TestAnAsynchronousFailoverNamesWhatIsLost(t *testing.T) {
	t.Parallel()
	w := setup(t, cluster.Options{Async: true})
	if _, err := w.Failover(t.Context(), cluster.Failover{OldUptime: time.Second}); err == nil {
		t.Fatal("an old primary that acknowledges came back")
	}
	w.works("kept")
	must(t, w.CaughtUp(t.Context()))
	w.Net.Find(w.Standby().Name, w.Primary().Name)[0].Hold(relay.Replies, true)
	lost := w.works("lost")
	s, err := w.Failover(t.Context(), cluster.Failover{})
	must(t, err)
	var values []string
	for _, e := range s.Effects {
		values = append(values, e.Value)
	}
	if want := []string{"lost 0", "lost 1"}; !slices.Equal(values, want) {
		t.Errorf("lost %q; want %q", values, want)
	}
	if len(s.Fences) != 1 || s.Fences[0].Resource != "robust/r1-1" || s.Fences[0].Was != lost.Token {
		t.Errorf("fences fell: %+v", s.Fences)
	}
	if got, want := w.values(), []string{"kept 0", "kept 1"}; !slices.Equal(got, want) {
		t.Errorf("effects %q; want %q", got, want)
	}
	must(t, w.Heal(t.Context()))
	if err := w.write(lost, "stale"); err == nil {
		t.Error("a grant of before the failover writes")
	}
	w.works("afterwards")
}
