//go:build unix

package lock_test

import (
	"testing"
	"time"

	"github.com/fencegate/fencegate/lock"
)

func TestABestEffortNodeGrantsAtOnceAfterAFailover(t *testing.T) {
	t.Parallel()
	w := newWatchedNode(t)
	cfg := watchedConfig(w)
	fences := &register{}
	cfg.BestEffort, cfg.Armer, cfg.MaxTTL = true, fences, time.Hour
	l := started(t, cfg)
	older := acquire(t, l, "r", lock.WithTTL(time.Hour))
	failed := w.fail(t, func() {})
	dropAnyLock(t, w.primary(t), prefixOf(cfg), "r") // as if it had not been replicated, which may happen
	newer := acquire(t, locker(t, cfg), "r")
	if token(t, newer) <= token(t, older) {
		t.Errorf("token %d after %d", token(t, newer), token(t, older))
	}
	if fences.fencedWrite("r", token(t, older)) {
		t.Error("the fence lets the older holder write")
	}
	if w.primary(t) == failed {
		t.Error("there was no failover: this test shows nothing")
	}
}
