package zklock_test

import (
	"context"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/lock/zklock"
)

// A frozen server keeps its connections open: the client alone would wait for most of the session timeout, here 60 s.
func TestAFrozenServerIsLeft(t *testing.T) {
	t.Parallel()
	e := ensemble(t, 3)
	s := source(t, zklock.Config{Servers: e.Addrs()})
	for _, server := range e.Servers {
		if err := server.Freeze(); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		lease, err := s.Acquire(ctx, leasing.Request{Resource: "orders/1001", TTL: ttl})
		if err == nil {
			err = s.Release(ctx, lease.Ref())
		}
		cancel()
		if err != nil {
			t.Error(err)
		}
		if err := server.Thaw(); err != nil {
			t.Fatal(err)
		}
	}
}
