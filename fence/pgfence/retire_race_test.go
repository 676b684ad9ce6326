package pgfence_test

import (
	"errors"
	"sync"
	"testing"

	"github.com/fencegate/fencegate/fence"
)

// forgetful acquires a name repeatedly, starting at 1 each time, and lets it retire at once. It returns how often a
// granted token was not above every token granted before the request.
func (w world) forgetful(t *testing.T, callers, times int) (wrong int) {
	t.Helper()
	var mu sync.Mutex
	var highest fence.Token
	var wait sync.WaitGroup
	failed := make(chan error, callers)
	for range callers {
		wait.Go(func() {
			for range times {
				mu.Lock()
				before := highest
				mu.Unlock()
				g := fence.Grant{Resource: orders, Token: 1, Seal: fence.NewSeal()}
				for {
					err := w.fence.Arm(t.Context(), arming(g))
					if low, ok := errors.AsType[*fence.NotRaisedError](err); ok {
						g.Token = low.Recorded + 1
						continue
					} else if err != nil {
						failed <- err
						return
					}
					break
				}
				mu.Lock()
				if g.Token <= before {
					wrong++
				}
				highest = max(highest, g.Token)
				mu.Unlock()
				if err := w.fence.End(t.Context(), ending(g)); err != nil && !errors.Is(err, fence.ErrStale) && !errors.Is(err, fence.ErrNeverIssued) {
					failed <- err
					return
				}
				if _, err := w.fence.Retire(t.Context(), 0, ""); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	wait.Wait()
	close(failed)
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
	return wrong
}

func TestTokensRiseWhileFencesRetire(t *testing.T) {
	t.Parallel()
	w := setup(t)
	if wrong := w.forgetful(t, 4, 60); wrong > 0 {
		t.Errorf("%d tokens were not above those given before", wrong)
	}
	if n := value[int64](t, w, `SELECT coalesce(max(floor), 0) FROM fence.floors`); n < 20 {
		t.Errorf("the floor is %d: hardly anything was retired", n)
	}
}

func TestTokensFallWhereAFloorIsIgnored(t *testing.T) {
	t.Parallel()
	w := setup(t)
	mutateFunction(t, w, "fence.raise", `fence.floor_of(p_resource)`, `0`)
	if w.forgetful(t, 1, 5) == 0 {
		t.Error("nothing was found")
	}
}
