package zklock

import (
	"context"
	"path"
	"reflect"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/testenv"
)

// waiting returns the waiters of the resource r.
func waiting(t *testing.T, s *store) *snapshot {
	t.Helper()
	at, err := s.look(t.Context(), "r")
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// freely acquires the resource r for another waiter.
func freely(t *testing.T, s *store) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	w := s.env.Lines.Enter("r")
	defer w.Leave()
	taken, err := s.Wait(ctx, leasing.Request{Resource: "r", TTL: time.Minute}, w)
	if err != nil {
		t.Fatalf("%v; want that nobody is before it", err)
	}
	if err := s.Free(t.Context(), leasing.Ref{Resource: "r", Owner: taken.Owner}); err != nil {
		t.Fatal(err)
	}
}

// A creation that got no answer is repeated, and both may be carried out.
func TestAWaiterWithSeveralPlacesWaitsForNoneOfThem(t *testing.T) {
	t.Parallel()
	s := ownStore(t)
	waiting(t, s) // creates the node
	p := &place{guid: "several"}
	for range 8 { // ZooKeeper returns the children in no order
		if err := s.stand(t.Context(), "r", p); err != nil {
			t.Fatal(err)
		}
	}
	if at := waiting(t, s); !p.first(at) {
		t.Errorf("%s waits for its own %s", p.name, p.ahead(at))
	}
	s.leave("r", p)
	testenv.Eventually(t, "all its places are left", func() bool { return len(waiting(t, s).waiting) == 0 })
	freely(t, s)
}

// The client may send a creation after the place was left.
func TestAPlaceIsLeftOnlyAfterTheCallsThatCreateIt(t *testing.T) {
	t.Parallel()
	s := ownStore(t)
	waiting(t, s) // creates the node
	p := &place{guid: "late"}
	p.standing.Add(1) // a call that waits in the client
	if gone, err := s.clear(t.Context(), "r", p); gone || err != nil {
		t.Fatalf("gone: %t, %v; want that the call is waited for", gone, err)
	}
	s.leave("r", p)
	if err := s.stand(t.Context(), "r", p); err != nil {
		t.Fatal(err)
	}
	p.standing.Add(-1)
	testenv.Eventually(t, "the late place is left", func() bool {
		gone, err := s.clear(t.Context(), "r", &place{guid: "another"})
		return gone && err == nil && len(waiting(t, s).waiting) == 0
	})
	freely(t, s)
}

// A call that was never sent creates nothing.
func TestAPlaceWhoseCallWasNotSentIsLeft(t *testing.T) {
	t.Parallel()
	s := ownStore(t)
	waiting(t, s) // creates the node
	p := &place{guid: "unsent"}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.stand(ended, "r", p); !isUnsent(err) {
		t.Fatalf("%v; want that it was not sent", err)
	}
	if gone, err := s.clear(t.Context(), "r", p); !gone || err != nil {
		t.Errorf("gone: %t, %v", gone, err)
	}
}

// While the lease is held, a waiter finds a place whose creation was not answered, and needs no other.
func TestAPlaceThatWasNotAnsweredIsFoundWhileTheLeaseIsHeld(t *testing.T) {
	t.Parallel()
	s := ownStore(t)
	if _, err := s.Take(t.Context(), leasing.Request{Resource: "r", TTL: time.Minute}); err != nil {
		t.Fatal(err)
	}
	p := &place{guid: "found"}
	if err := s.stand(t.Context(), "r", p); err != nil {
		t.Fatal(err)
	}
	p.name, p.doubt = "", true
	_, _, err := s.take(t.Context(), leasing.Request{Resource: "r", TTL: time.Minute}, p)
	if at := waiting(t, s); p.name == "" || len(at.waiting) != 1 || p.name != at.waiting[0] {
		t.Errorf("%v; it knows %q of %v", err, p.name, at.waiting)
	}
}

// A watch on a node that does not exist stays in the client and in the server.
func TestWhatIsGoneIsNotWatched(t *testing.T) {
	t.Parallel()
	s := ownStore(t)
	at := waiting(t, s)
	p := &place{guid: "p", name: "wait.p-0000000009"}
	at.waiting = []string{"wait.gone-0000000001", p.name}
	s.watch(t.Context(), "r", p, at)
	if n := reflect.ValueOf(s.session.conn).Elem().FieldByName("watchers").Len(); n > 0 || p.fired != nil {
		t.Errorf("%d watches for %s", n, path.Join(s.node("r"), at.waiting[0]))
	}
}
