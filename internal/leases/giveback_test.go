package leases

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/testenv"
)

// hiccup is a service in which another holds "b", and which fails to free a lease the first time.
type hiccup struct {
	Store
	tries, freed atomic.Int32
}

func (h *hiccup) Take(_ context.Context, r leasing.Request) (Taken, error) {
	if r.Resource == "b" {
		return Taken{}, &leasing.HeldError{Resource: r.Resource}
	}
	return Taken{Resource: r.Resource, Owner: "owner", Token: 1, Deadline: time.Now().Add(r.TTL)}, nil
}

func (h *hiccup) Free(context.Context, leasing.Ref) error {
	if h.tries.Add(1) == 1 {
		return errors.New("no answer")
	}
	h.freed.Add(1)
	return nil
}

func (h *hiccup) Raise(context.Context, fence.Token) error { return errors.New("no answer") }
func (h *hiccup) Close() error                             { return nil }

// higher is a fence that records more than the service gives.
type higher struct{}

func (higher) Arm(_ context.Context, a fence.Arming) error {
	return &fence.NotRaisedError{Resource: a.Resource, Offered: a.Token, Recorded: a.Token + 1}
}

func hiccups(t *testing.T, armer leasing.Armer) (*hiccup, *Source) {
	t.Helper()
	h := &hiccup{}
	s, err := New(Config{Store: h, Armer: armer, MinTTL: time.Second, MaxTTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return h, s
}

func TestWhatWasTakenBesideAHeldResourceIsGivenBackAfterAHiccup(t *testing.T) {
	t.Parallel()
	h, s := hiccups(t, nil)
	_, err := s.TryAcquireAll(t.Context(), []leasing.Request{{Resource: "a", TTL: time.Hour}, {Resource: "b", TTL: time.Hour}})
	if !errors.Is(err, leasing.ErrHeld) {
		t.Fatal(err)
	}
	testenv.Eventually(t, `"a" is free`, func() bool { return h.freed.Load() == 1 })
}

// doubtful arms with an unknown outcome.
type doubtful struct{}

func (doubtful) Arm(context.Context, fence.Arming) error { return fence.ErrUnknown }

// Once the fence may be raised, a repeat of the request in another process may have returned the lease: it knows it by
// the caller's seal.
func TestALeaseThatARepeatMayHaveReturnedIsNotGivenBack(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		once  bool // nobody repeats the request
		seals [][]byte
		armer leasing.Armer
		tries int32
	}{
		{"own seal", false, [][]byte{nil}, doubtful{}, 1},
		{"the caller's seal", false, [][]byte{make([]byte, 32)}, doubtful{}, 0},
		{"the caller's seal, once", true, [][]byte{make([]byte, 32)}, doubtful{}, 1},
		{"the first of several is unknown", false, [][]byte{make([]byte, 32), make([]byte, 32)}, doubtful{}, 2},
		{"refused", false, [][]byte{make([]byte, 32)}, refusing{}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h, s := hiccups(t, c.armer)
			h.tries.Store(1)
			var all []leasing.Request
			for i, seal := range c.seals {
				all = append(all, leasing.Request{Resource: []string{"a", "c"}[i], TTL: time.Hour, SealHash: seal, Repeatable: !c.once})
			}
			if _, err := s.TryAcquireAll(t.Context(), all); err == nil {
				t.Fatal("it gave a lease")
			}
			if err := s.Close(); err != nil { // waits for what is given back
				t.Error(err)
			}
			if n := h.freed.Load(); n != c.tries {
				t.Errorf("%d leases were given back, want %d", n, c.tries)
			}
		})
	}
}

// refusing raises no fence.
type refusing struct{}

func (refusing) Arm(context.Context, fence.Arming) error { return errors.New("read-only") }

func TestALeaseBelowItsFenceIsGivenBackAfterAHiccup(t *testing.T) {
	t.Parallel()
	h, s := hiccups(t, higher{})
	if _, err := s.TryAcquire(t.Context(), leasing.Request{Resource: "a", TTL: time.Hour}); err == nil {
		t.Fatal("it gave a lease below the fence")
	}
	testenv.Eventually(t, `"a" is free`, func() bool { return h.freed.Load() == 1 })
}
