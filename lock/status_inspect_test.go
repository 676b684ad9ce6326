package lock_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/lock"
)

// If a node does not answer and it decides whether a quorum holds the lease, the resource is not reported as free,
// because the caller may end its grant on that report.
func TestAnInspectionThatASilentNodeDecidesSaysSo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		l := started(t, cfg)
		leased(t, l, "r")
		synctest.Wait()
		must(t, nodes[1].Client(t).Del(t.Context(), lock.DefaultKeyPrefix+":lock:r").Err())
		if ins, err := leasing.One(l.Inspect(t.Context(), "r")); err != nil || !ins.Locked {
			t.Errorf("two have it: %+v, %v", ins, err)
		}
		nodes[0].Freeze()
		begun := time.Now()
		ins, err := leasing.One(l.Inspect(t.Context(), "r"))
		if _, missing := errors.AsType[*lock.QuorumError](err); !missing {
			t.Errorf("%+v, %v", ins, err)
		}
		if took := time.Since(begun); took > time.Second {
			t.Errorf("it took %v", took)
		}
		if all, err := l.Inspect(t.Context(), []string{"free", "r"}...); err == nil || len(all) != 2 || all[1].Locked {
			t.Errorf("of both: %+v, %v", all, err)
		}
		if ins, err := leasing.One(l.Inspect(t.Context(), "free")); err != nil || ins.Locked {
			t.Errorf("a resource that nobody has: %+v, %v", ins, err)
		}
	})
}

// A free resource is the first error of a node's answer, and hides those behind it.
func TestANodeWhoseCountersCantBeReadIsAFailedMember(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		l := started(t, cfg)
		leased(t, l, "r")
		synctest.Wait()
		c := nodes[0].Client(t)
		must(t, c.Del(t.Context(), lock.DefaultKeyPrefix+":h").Err())
		must(t, c.Set(t.Context(), lock.DefaultKeyPrefix+":h", "of another program", 0).Err())
		all, err := l.Inspect(t.Context(), []string{"free", "r"}...)
		if err != nil || len(all) != 2 || all[0].Locked || !all[1].Locked {
			t.Fatalf("%+v, %v", all, err)
		}
		for _, one := range all {
			for i, m := range one.Members {
				if failed := m.Err != nil; failed != (i == 0) {
					t.Errorf("%s, %s: %v", one.Resource, m.Name, m.Err)
				}
			}
		}
	})
}
