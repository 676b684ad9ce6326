package leases

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
)

// higher is a fence that records more than the service gives.
type higher struct{ anyFence }

func (higher) Arm(_ context.Context, all ...fence.Arming) error {
	a := all[0]
	return &fence.NotRaisedError{Resource: a.Resource, Offered: a.Token, Recorded: a.Token + 1}
}

// The service is away when a failed acquisition gives back the resources that it took.
func TestWhatIsNotGivenBackAtOnceIsGivenBackAfterAHiccup(t *testing.T) {
	t.Parallel()
	for name, acquire := range map[string]struct {
		armer leasing.Armer
		want  error
	}{
		"beside a held resource": {nil, leasing.ErrHeld},
		"below its fence":        {higher{}, leasing.ErrUnavailable},
		"arming fails":           {refusing{}, errReadOnly},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newService()
				all := []leasing.Request{request("a")}
				if acquire.armer == nil {
					take(t, s.process(t, nil), "b")
					all = append(all, request("b"))
				}
				source := s.process(t, acquire.armer)
				const away = 5 * time.Second
				s.onTake = func(resource string) {
					if resource == all[len(all)-1].Resource {
						s.away = time.Now().Add(away)
					}
				}
				if _, err := source.Acquire(t.Context(), leasing.AtOnce, all...); !errors.Is(err, acquire.want) {
					t.Fatalf("%v; want %v", err, acquire.want)
				}
				if !s.lives("a") {
					t.Fatal("it was given back while the service was away")
				}
				time.Sleep(away + backPauses)
				freed := s.called("free")
				if s.lives("a") || len(freed) < 5 || freed[len(freed)-1] < away {
					t.Errorf("a lives: %t; freed after %v", s.lives("a"), freed)
				}
				time.Sleep(time.Hour)
				if again := s.called("free"); len(again) > 0 {
					t.Errorf("freed again after %v", again)
				}
			})
		})
	}
}

// A lease that its TTL has ended needs no release.
func TestALeaseIsGivenBackForAsLongAsItLives(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService()
		source := s.process(t, refusing{})
		s.onTake = func(string) { s.away = time.Now().Add(time.Hour) }
		if _, err := leasing.One(source.Acquire(t.Context(), leasing.AtOnce, request("a"))); !errors.Is(err, errReadOnly) {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if freed := s.called("free"); len(freed) < 10 || freed[len(freed)-1] > ttl+backPauses {
			t.Errorf("freed after %v", freed)
		}
	})
}

// Close bounds the time for what is given back.
func TestCloseWaitsAWhileForWhatIsGivenBack(t *testing.T) {
	t.Parallel()
	for away, given := range map[time.Duration]bool{closeTimeout / 2: true, time.Hour: false} {
		synctest.Test(t, func(t *testing.T) {
			s := newService()
			source := s.process(t, refusing{})
			s.onTake = func(string) { s.away = time.Now().Add(away) }
			if _, err := leasing.One(source.Acquire(t.Context(), leasing.AtOnce, request("a"))); !errors.Is(err, errReadOnly) {
				t.Fatal(err)
			}
			if err := source.Close(); err != nil || time.Since(s.begun) > closeTimeout {
				t.Errorf("%v after %v", err, time.Since(s.begun))
			}
			if s.lives("a") == given {
				t.Errorf("the service is away for %v: a lives: %t", away, s.lives("a"))
			}
		})
	}
}

// doubtful arms with an unknown outcome.
type doubtful struct{ anyFence }

func (doubtful) Arm(context.Context, ...fence.Arming) error { return fence.ErrUnknown }

// Once the fence may be raised, a repeat of the request in another process may have returned the lease: it knows it by
// the caller's seal.
func TestALeaseThatARepeatMayHaveReturnedIsNotGivenBack(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		once  bool // nobody repeats the request
		seals [][]byte
		armer leasing.Armer
		freed int
	}{
		{"own seal", false, [][]byte{nil}, doubtful{}, 1},
		{"the caller's seal", false, [][]byte{make([]byte, 32)}, doubtful{}, 0},
		{"the caller's seal, once", true, [][]byte{make([]byte, 32)}, doubtful{}, 1},
		{"several, with callers' seals", false, [][]byte{make([]byte, 32), make([]byte, 32)}, doubtful{}, 0},
		{"refused", false, [][]byte{make([]byte, 32)}, refusing{}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newService()
				source := s.process(t, c.armer)
				var all []leasing.Request
				for i, seal := range c.seals {
					all = append(all, leasing.Request{Resource: []string{"a", "c"}[i], TTL: ttl, SealHash: seal, Repeatable: !c.once})
				}
				if _, err := source.Acquire(t.Context(), leasing.AtOnce, all...); err == nil {
					t.Fatal("it gave a lease")
				}
				synctest.Wait()
				if freed := s.called("free"); len(freed) != c.freed || s.lives("a") != (c.freed == 0) {
					t.Errorf("given back %d times, want %d; a lives: %t", len(freed), c.freed, s.lives("a"))
				}
			})
		})
	}
}

// refusing raises no fence.
type refusing struct{ anyFence }

func (refusing) Arm(context.Context, ...fence.Arming) error { return errReadOnly }

var errReadOnly = errors.New("read-only")
