package recent_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/internal/recent"
)

func TestCallersShareAnAnswerWhileItLasts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, asked := recent.New[int](), 0
		ask := func(context.Context) int {
			time.Sleep(time.Second) // the others wait for the answer
			asked++
			return asked
		}
		for range 3 {
			go a.Get(time.Minute, time.Hour, ask)
		}
		if got := a.Get(time.Minute, time.Hour, ask); got != 1 {
			t.Errorf("at once: answer %d", got)
		}
		time.Sleep(time.Minute)
		if got := a.Get(time.Minute, time.Hour, ask); got != 2 {
			t.Errorf("after a minute: answer %d", got)
		}
	})
}
