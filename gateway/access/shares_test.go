package access_test

import (
	"testing"

	"github.com/fencegate/fencegate/gateway/access"
)

func TestNobodyTakesAllShares(t *testing.T) {
	t.Parallel()
	take := func(s *access.Shares, p *access.Principal) (got int, leave func()) {
		for {
			l, ok := s.Take(p)
			if !ok {
				return got, leave
			}
			got, leave = got+1, l
		}
	}
	greedy, modest := access.NewPrincipal("greedy"), access.NewPrincipal("modest")
	for _, c := range []struct{ all, each, rest int }{{20, 5, 5}, {4, 2, 2}, {3, 2, 1}, {1, 1, 0}} {
		s := access.NewShares(c.all)
		got, leave := take(s, greedy)
		if got != c.each {
			t.Errorf("of %d: %d for one principal, want %d", c.all, got, c.each)
		}
		if got, _ := take(s, modest); got != c.rest {
			t.Errorf("of %d: %d for the other, want %d", c.all, got, c.rest)
		}
		leave()
		leave() // does nothing
		if got, _ := take(s, greedy); got != 1 {
			t.Errorf("of %d: %d after one was given back", c.all, got)
		}
	}
	if got, _ := take(access.NewShares(20), access.Everybody()); got != 20 {
		t.Errorf("everybody got %d of 20", got)
	}
}
