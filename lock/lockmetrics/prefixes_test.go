package lockmetrics_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/lockmetrics"
)

func TestHeldLeasesAreToldByTheLongestPrefix(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := lockmetrics.New()
		l, _ := started(t, 1, m)
		prefixes, err := lockmetrics.NewPrefixes([]string{"jobs/", "jobs/nightly/", "orders/"})
		if err != nil {
			t.Fatal(err)
		}
		m.WatchHeldByPrefix(prefixes, l.EachLease)
		var leases []*lock.Lease
		for _, resource := range []string{"jobs/1", "jobs/2", "jobs/nightly/1", "elsewhere", "jobs"} {
			lease, err := l.Acquire(t.Context(), resource)
			if err != nil {
				t.Fatal(err)
			}
			leases = append(leases, lease)
		}
		want := func(when string, series map[string]float64) {
			t.Helper()
			all := gathered(t, m)
			for prefix, n := range series {
				if got, known := all["fencegate_leases_held_by_prefix/"+prefix]; !known || got != n {
					t.Errorf("%s, %s: %v, known %v; want %v", when, prefix, got, known, n)
				}
			}
		}
		want("held", map[string]float64{"jobs/": 2, "jobs/nightly/": 1, "orders/": 0, "other": 2})
		for _, lease := range leases {
			if err := lease.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		want("released", map[string]float64{"jobs/": 0, "jobs/nightly/": 0, "orders/": 0, "other": 0})
	})
}

func TestPrefixesThatAreNoLabelsAreRefused(t *testing.T) {
	t.Parallel()
	var many []string
	for i := range 21 {
		many = append(many, fmt.Sprintf("%d/", i))
	}
	for name, prefixes := range map[string][]string{
		"too many": many, "empty": {""}, "twice": {"jobs/", "jobs/"}, "other": {"other"}, "a pattern": {"jobs/*"}, "too long": {strings.Repeat("x", 513)}, "no UTF-8": {"\xff"},
	} {
		if _, err := lockmetrics.NewPrefixes(prefixes); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := lockmetrics.NewPrefixes(many[:20]); err != nil {
		t.Error(err)
	}
}
