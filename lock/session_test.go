package lock

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence"
)

// Timers are late in a process that was suspended, but every method reports that the lease is over.
func TestALeaseThatIsOverIsSeenWithoutItsTimer(t *testing.T) {
	t.Parallel()
	l, err := New(Config{Nodes: []Node{{Addr: "127.0.0.1:1"}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	for name, over := range map[string]func(lease *Lease) bool{
		"cause": func(lease *Lease) bool { return errors.Is(context.Cause(lease.Context()), ErrLost) },
		"err":   func(lease *Lease) bool { return lease.Context().Err() != nil },
		"grant": func(lease *Lease) bool { _, err := lease.Grant(); return errors.Is(err, ErrLost) },
		"done": func(lease *Lease) bool {
			select {
			case <-lease.Done():
				return true
			default:
				return false
			}
		},
		"a context made of it": func(lease *Lease) bool {
			inner, cancel := context.WithCancel(lease.Context())
			defer cancel()
			return inner.Err() != nil
		},
	} {
		s := newSession(t.Context(), l, fence.Grant{Resource: "r"}, newID(), time.Hour, l.clock.now().add(time.Hour))
		s.timer.Stop()
		_ = s.context()
		lease := &Lease{s: s}
		if over(lease) {
			t.Errorf("%s: over before its deadline", name)
		}
		s.deadline = l.clock.now()
		if !over(lease) {
			t.Errorf("%s: not over", name)
		}
	}
}
