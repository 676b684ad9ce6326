package lock_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/lock"
)

// Who asks for the grant while a lease is being released learns at once that it is over.
func TestGrantDoesNotWaitForARelease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		l := started(t, cfg)
		lease, err := l.TryAcquire(t.Context(), "r")
		must(t, err)
		for _, n := range nodes {
			n.Freeze()
		}
		first, second := make(chan error, 1), make(chan error, 1)
		go func() { first <- lease.Release(t.Context()) }()
		synctest.Wait()
		go func() { second <- lease.Release(t.Context()) }()
		begun := time.Now()
		if _, err := lease.Grant(); !errors.Is(err, lock.ErrReleased) {
			t.Errorf("grant: %v", err)
		}
		if waited := time.Since(begun); waited != 0 {
			t.Errorf("it took %v", waited)
		}
		if a, b := <-first, <-second; !errors.Is(a, lock.ErrNoQuorum) || !errors.Is(b, a) {
			t.Errorf("released: %v; again: %v", a, b)
		}
		for _, n := range nodes {
			n.Thaw()
		}
	})
}
