package history

import "testing"

func TestTimeThatWasLostDoesNotPass(t *testing.T) {
	t.Parallel()
	paces := Paces{{From: 100, To: 200, Lost: 50}, {From: 200, To: 300}, {From: 400, To: 500, Lost: 100}}
	for _, c := range []struct{ from, to, lost int64 }{
		{0, 100, 0}, {0, 150, 25}, {120, 180, 30}, {0, 600, 150}, {150, 450, 75}, {300, 400, 0}, {50, 50, 0},
	} {
		if got := paces.Lost(c.from, c.to); got != c.lost {
			t.Errorf("from %d to %d it lost %d, want %d", c.from, c.to, got, c.lost)
		}
	}
	for _, c := range []struct{ from, d, after int64 }{
		{0, 50, 50},
		{0, 100, 100},
		{0, 125, 150},
		{0, 150, 200},
		{150, 25, 200},
		{150, 135, 310},
		{0, 350, 400},
		{0, 351, 501},
		{400, 1, 501},
		{600, 7, 607},
	} {
		if got := paces.After(c.from, c.d); got != c.after {
			t.Errorf("%d after %d is %d, want %d", c.d, c.from, got, c.after)
		}
	}
	if got := Paces(nil).After(7, 8); got != 15 {
		t.Errorf("without a yardstick: %d", got)
	}
}
