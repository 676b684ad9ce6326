package lock_test

import (
	"testing"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/fence/leasing/leasingtest"
	"github.com/fencegate/fencegate/internal/memredis"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
)

func TestALockerFollowsTheRulesOfASource(t *testing.T) {
	t.Parallel()
	for _, rule := range leasingtest.Rules {
		t.Run(rule.Name, func(t *testing.T) {
			t.Parallel()
			groups(t, []int{1, 3}, func(t *testing.T, cfg lock.Config, _ []*memredis.Node) { rule.Check(t, openOn(t, cfg)) })
		})
	}
}

// The same with the scripts in Redis' own Lua.
func TestALockerOnRedisFollowsTheRulesOfASource(t *testing.T) {
	t.Parallel()
	leasingtest.Run(t, func(tb testing.TB) leasingtest.Open {
		r := testenv.Redis(tb, 3)
		return openOn(tb, lock.Config{Nodes: nodesAt(r.Addrs...), KeyPrefix: lock.Prefix(r.Prefix), NodeTimeout: patient})
	})
}

func openOn(tb testing.TB, cfg lock.Config) leasingtest.Open {
	tb.Helper()
	first, err := lock.New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = first.Close() })
	initialise(tb, first)
	return func(armer leasing.Armer) leasing.Source {
		one := cfg
		one.Armer = armer
		l, err := lock.New(one)
		if err != nil {
			tb.Error(err)
			return nil
		}
		return l.Source()
	}
}
