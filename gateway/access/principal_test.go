package access_test

import (
	"testing"

	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/gateway/quota"
)

func TestNobodyTakesAllShares(t *testing.T) {
	t.Parallel()
	take := func(places *quota.Quota[string], p *access.Principal) (got int) {
		for {
			if _, ok := places.Take(p.Name(), p.ShareOf(places.All)); !ok {
				return got
			}
			got++
		}
	}
	greedy, modest := access.NewPrincipal("greedy"), access.NewPrincipal("modest")
	for _, c := range []struct{ all, each, rest int }{{20, 5, 5}, {4, 2, 2}, {3, 2, 1}, {1, 1, 0}} {
		places := &quota.Quota[string]{All: c.all}
		if got := take(places, greedy); got != c.each {
			t.Errorf("of %d: %d for one principal, want %d", c.all, got, c.each)
		}
		if got := take(places, modest); got != c.rest {
			t.Errorf("of %d: %d for the other, want %d", c.all, got, c.rest)
		}
	}
	if got := take(&quota.Quota[string]{All: 20}, access.Everybody()); got != 20 {
		t.Errorf("everybody got %d of 20", got)
	}
}
