package lock_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/internal/memredis"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/admin"
)

// stranger is a Locker that admits nothing, like `fencegate nodes status`.
func stranger(t *testing.T, cfg lock.Config) *lock.Locker {
	t.Helper()
	cfg.Armer, cfg.Epochs = nil, nil
	return locker(t, cfg)
}

func TestALostNodeIsAdmittedThoughNobodyAsksForLeases(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(*testing.T, *memredis.Node){
		"restarted empty":             func(t *testing.T, n *memredis.Node) { n.Lose(t) },
		"restarted with all its data": func(t *testing.T, n *memredis.Node) { n.Restart(t) },
		"flushed":                     func(t *testing.T, n *memredis.Node) { must(t, n.Client(t).FlushAll(t.Context()).Err()) },
		"counters deleted": func(t *testing.T, n *memredis.Node) {
			must(t, n.Client(t).Del(t.Context(), lock.DefaultKeyPrefix+":h").Err())
		},
		"keys evicted": func(_ *testing.T, n *memredis.Node) { n.Says(func(a *memredis.Account) { a.Evicted++ }) },
		"failed over and back": func(_ *testing.T, n *memredis.Node) {
			n.Says(func(a *memredis.Account) { a.ReplID, a.OtherReplID = strings.Repeat("b", 40), strings.Repeat("c", 40) })
		},
		"scripts flushed": func(t *testing.T, n *memredis.Node) { must(t, n.Client(t).ScriptFlush(t.Context()).Err()) },
	} {
		for _, size := range []int{1, 3} {
			t.Run(fmt.Sprintf("%d, %s", size, name), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					cfg, nodes := inMemory(t, size)
					cfg.Armer, cfg.Epochs = &register{}, &epochs{}
					watchers := []*lock.Locker{started(t, cfg), locker(t, cfg), locker(t, cfg)}
					time.Sleep(5 * time.Second) // each has checked the nodes
					before := leased(t, watchers[0], "r")
					must(t, before.Release(t.Context()))
					synctest.Wait()
					sight := stranger(t, cfg)
					lose(t, nodes[0])
					lost := time.Now()
					if admin.Of(sight).Status(t.Context())[0].Admitted {
						t.Fatal("it is admitted")
					}
					for !admin.Of(sight).Status(t.Context())[0].Admitted && time.Since(lost) < 2*lock.DefaultMaxTTL {
						time.Sleep(time.Second)
					}
					took := time.Since(lost)
					if most := lock.DefaultMaxTTL + 6*time.Second; took > most || size == 1 && took < lock.DefaultMaxTTL {
						t.Errorf("admitted after %v", took)
					}
					for _, l := range watchers {
						after := leased(t, l, "r")
						if token(t, after) <= before.Ref().Token {
							t.Error("token fell")
						}
						must(t, after.Release(t.Context()))
						synctest.Wait()
					}
				})
			})
		}
	}
}

// A quarantine would keep a new group from granting leases for minutes.
func TestAGroupThatWasNeverStartedIsLeftToInit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := inMemory(t, 3)
		cfg.Armer, cfg.Epochs = &register{}, &epochs{}
		l := locker(t, cfg)
		time.Sleep(5 * time.Minute)
		for _, st := range admin.Of(stranger(t, cfg)).Status(t.Context()) {
			if st.Admitted || st.Quarantine > 0 {
				t.Errorf("%s: admitted: %v, quarantine %v", st.Name, st.Admitted, st.Quarantine)
			}
		}
		begun := time.Now()
		must(t, admin.Of(l).Init(t.Context()))
		leased(t, l, "r")
		if took := time.Since(begun); took != 0 {
			t.Errorf("it took %v", took)
		}
	})
}

func TestAnIdleLockerAsksANodeOnceASecondAtTheMost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 1)
		cfg.Armer, cfg.Epochs = &register{}, &epochs{}
		l := started(t, cfg)
		time.Sleep(5 * time.Second) // the first check uses more commands
		var asked atomic.Int64
		nodes[0].Requests.Delay(func() time.Duration { asked.Add(1); return 0 })
		time.Sleep(10 * time.Minute)
		if n := asked.Load(); n < 300 || n > 600 {
			t.Errorf("%d requests in ten minutes", n)
		}
		must(t, l.Close())
		asked.Store(0)
		time.Sleep(time.Hour)
		if n := asked.Load(); n != 0 {
			t.Errorf("%d requests after Close", n)
		}
	})
}
