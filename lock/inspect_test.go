package lock_test

import (
	"errors"
	"testing"
	"time"

	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/lock"
)

// A lease that a quorum holds, one of which does not answer, is not taken for free: somebody may end its grant on that word.
func TestAnInspectionThatASilentNodeDecidesSaysSo(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 3, redisserver.Config{})
	l := started(t, cfg)
	acquire(t, l, "r", lock.WithTTL(time.Minute))
	dropLock(t, servers[1].Addr, cfg.KeyPrefix, "r")
	eventually(t, 10*time.Second, "the others have it", func() bool {
		ins, err := l.Inspect(t.Context(), "r")
		return err == nil && ins.Locked
	})
	cfg.NodeTimeout = silence
	quick := locker(t, cfg)
	freeze(t, servers[0])
	ins, err := quick.Inspect(t.Context(), "r")
	if _, missing := errors.AsType[*lock.QuorumError](err); !missing {
		t.Errorf("%+v, %v", ins, err)
	}
	if all, err := quick.InspectAll(t.Context(), []string{"free", "r"}); err == nil || len(all) != 2 || all[1].Locked {
		t.Errorf("of both: %+v, %v", all, err)
	}
	if ins, err := quick.Inspect(t.Context(), "free"); err != nil || ins.Locked {
		t.Errorf("a resource that nobody has: %+v, %v", ins, err)
	}
}
