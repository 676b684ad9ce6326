package zklock_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/lock/zklock"
)

// A frozen server keeps its connections open: the client alone would wait for most of the session timeout, here two
// minutes. Another server has the lease within an election, if the frozen one was the leader.
func TestAFrozenServerIsLeft(t *testing.T) {
	t.Parallel()
	e := ensemble(t, 3)
	s := source(t, zklock.Config{Servers: e.Addrs()})
	take(t, s, "before", ttl) // it is connected
	connected := zklock.Server(s)
	frozen := e.Servers[slices.Index(e.Addrs(), connected)]
	if err := frozen.Freeze(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := s.Acquire(ctx, leasing.UntilDone, leasing.Request{Resource: "orders/1001", TTL: ttl}); err != nil || zklock.Server(s) == connected {
		t.Errorf("%v; connected to %s, where %s is frozen", err, zklock.Server(s), connected)
	}
}
