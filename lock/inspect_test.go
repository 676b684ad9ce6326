package lock_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/lock"
)

// If a node does not answer and it decides whether a quorum holds the lease, the resource is not reported as free,
// because the caller may end its grant on that report.
func TestAnInspectionThatASilentNodeDecidesSaysSo(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 3, redisserver.Config{})
	l := started(t, cfg)
	acquireEverywhere(t, l, "r", lock.WithTTL(time.Minute))
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
	err = patiently(t.Context(), func() (err error) { ins, err = quick.Inspect(t.Context(), "free"); return err })
	if err != nil || ins.Locked {
		t.Errorf("a resource that nobody has: %+v, %v", ins, err)
	}
}

// A free resource is the first error of a node's answer, and hides those behind it.
func TestANodeWhoseCountersCantBeReadIsAFailedMember(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 3, redisserver.Config{})
	l := started(t, cfg)
	acquireEverywhere(t, l, "r", lock.WithTTL(time.Minute))
	c := client(t, servers[0].Addr)
	must(t, c.Del(t.Context(), cfg.KeyPrefix+":h").Err())
	must(t, c.Set(t.Context(), cfg.KeyPrefix+":h", "of another program", 0).Err())
	var all []leasing.Inspection
	var err error
	eventually(t, 20*time.Second, "all nodes answer in time", func() bool {
		all, err = l.InspectAll(t.Context(), []string{"free", "r"})
		return !slices.ContainsFunc(all, func(one leasing.Inspection) bool {
			return slices.ContainsFunc(one.Members, func(m leasing.Member) bool { return errors.Is(m.Err, lock.ErrNodeTimeout) })
		})
	})
	if err != nil || len(all) != 2 || all[0].Locked || !all[1].Locked {
		t.Fatalf("%+v, %v", all, err)
	}
	for _, one := range all {
		failed := 0
		for _, m := range one.Members {
			if m.Err != nil {
				failed++
			}
		}
		if failed != 1 {
			t.Errorf("%d members failed, want 1: %+v", failed, one)
		}
	}
}
