//go:build unix

package gateway

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence/leasing"
)

// The look for leases that ran out may come while the next one is armed here and drains.
func TestATokenThatIsBeingSupersededIsNotForgotten(t *testing.T) {
	t.Parallel()
	ref := leasing.Ref{Resource: "r", Token: 5}
	for arming, want := range map[bool]int64{true: 5, false: 0} {
		h := newHoldings()
		h.note(ref, time.Now().Add(-time.Second))
		end := func() {}
		if arming {
			end = h.arm("r")
		}
		h.ended(ref)
		if got := h.armed("r", 6); int64(got) != want {
			t.Errorf("arming %t: token %d is superseded, want %d", arming, got, want)
		}
		if end(); len(h.arming) != 0 {
			t.Errorf("%v is still noted", h.arming)
		}
	}
}

// together is a source of leases that answers once so many questions have arrived.
type together struct {
	leasing.Source

	all sync.WaitGroup
}

func (s *together) Inspect(ctx context.Context, resource string) (leasing.Inspection, error) {
	s.all.Done()
	s.all.Wait()
	return leasing.Inspection{Resource: resource}, ctx.Err()
}

func TestAPageOfLeasesIsInspectedManyAtATime(t *testing.T) {
	t.Parallel()
	source := new(together)
	source.all.Add(inspectsAtOnce)
	names := make([]string, inspectsAtOnce)
	for i := range names {
		names[i] = strconv.Itoa(i)
	}
	all, err := guarded{Source: source}.Inspect(t.Context(), names...)
	if err != nil {
		t.Fatal(err)
	}
	for i, one := range all {
		if one.Resource != names[i] {
			t.Errorf("%q at %d", one.Resource, i)
		}
	}
}
