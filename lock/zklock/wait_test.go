package zklock_test

import (
	"errors"
	"testing"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock/zklock"
)

// The session lives on if it holds a lease, and its places in the queues would, too.
func TestAClosedSourceLeavesTheLine(t *testing.T) {
	t.Parallel()
	e := ensemble(t, 1)
	s, closed := source(t, zklock.Config{Servers: e.Addrs()}), source(t, zklock.Config{Servers: e.Addrs()})
	take(t, s, "r", ttl)
	take(t, closed, "another", ttl)
	waited := make(chan error, 1)
	go func() {
		_, err := closed.Acquire(t.Context(), leasing.UntilDone, leasing.Request{Resource: "r", TTL: ttl})
		waited <- err
	}()
	waiting := func() int {
		ins, err := leasing.One(s.Inspect(t.Context(), "r"))
		if err != nil {
			t.Fatal(err)
		}
		return ins.Waiters
	}
	testenv.Eventually(t, "it waits", func() bool { return waiting() == 1 })
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	if n := waiting(); n != 0 {
		t.Errorf("%d in the line of a source that is closed", n)
	}
	if err := <-waited; !errors.Is(err, leasing.ErrClosed) {
		t.Errorf("who waited: %v; want ErrClosed", err)
	}
	if ins, err := leasing.One(s.Inspect(t.Context(), "another")); err != nil || !ins.Locked {
		t.Errorf("%+v, %v; want its lease held", ins, err)
	}
}
