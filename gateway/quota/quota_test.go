package quota_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/gateway/quota"
)

func TestAnOwnerHasAtMostItsPlaces(t *testing.T) {
	t.Parallel()
	q := quota.Quota[string]{All: 3}
	first, _ := q.Take("a", 2)
	if _, ok := q.Take("a", 2); !ok {
		t.Error("the second of two places was refused")
	}
	if _, ok := q.Take("a", 2); ok {
		t.Error("a third of two places was given")
	}
	if _, ok := q.Take("b", 0); !ok {
		t.Error("another owner was refused")
	}
	if _, ok := q.Take("b", 0); ok {
		t.Error("a fourth of three places was given")
	}
	first()
	first() // the second call returns nothing
	if _, ok := q.Take("a", 2); !ok {
		t.Error("a returned place was refused")
	}
	if _, ok := q.Take("c", 0); ok {
		t.Error("a place that was returned twice was given twice")
	}
	if got := q.Used("a"); got != 2 {
		t.Errorf("a has %d places, want 2", got)
	}
}

func TestWhoWaitsIsServedInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var q quota.Quota[string]
		leave, _ := q.Take("a", 1)
		var served atomic.Int32
		for i := range 3 {
			go func() {
				time.Sleep(time.Duration(i) * time.Second)
				own, err := q.Wait(t.Context(), "a", 1)
				if got := int(served.Add(1)) - 1; err != nil || got != i {
					t.Errorf("waiter %d was served as number %d: %v", i, got, err)
					return
				}
				time.Sleep(time.Minute)
				own()
			}()
		}
		time.Sleep(5 * time.Second)
		if n := served.Load(); n != 0 {
			t.Errorf("%d were served while the place was taken", n)
		}
		leave()
		synctest.Wait()
		if n := served.Load(); n != 1 {
			t.Errorf("%d were served by one place", n)
		}
		time.Sleep(4 * time.Minute)
		if n := served.Load(); n != 3 || q.Used("a") != 0 {
			t.Errorf("%d were served, %d places are taken", n, q.Used("a"))
		}
	})
}

func TestAWaitEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var q quota.Quota[string]
		leave, _ := q.Take("a", 1)
		late := errors.New("late")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, late)
		defer cancel()
		if _, err := q.Wait(ctx, "a", 1); !errors.Is(err, late) {
			t.Errorf("got %v, want the context's cause", err)
		}
		leave()
		if n := q.Used("a"); n != 0 {
			t.Errorf("a wait that ended has %d places", n)
		}
		if _, ok := q.Take("a", 1); !ok {
			t.Error("a wait that ended keeps its place in the line")
		}
	})
}
