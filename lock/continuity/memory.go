package continuity

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
)

// Memory is the record in this process, where there are no Redis nodes to remember. It notices that the same server was set back;
// what another server is, the database knows itself, see fence.need_source. The zero value remembers nothing.
type Memory struct{ seen atomic.Pointer[Seen] }

var errLooking = errors.New("others looked at PostgreSQL at the same time, each time anew")

// Look is [Nodes.Look]. Nothing is locked while PostgreSQL is asked. Where somebody else looked in between it is asked again,
// so that what that one saw later is never taken for the past.
func (m *Memory) Look(ctx context.Context, ask func(context.Context) (Seen, error)) error {
	for range 2 * attempts {
		was := m.seen.Load()
		seen, err := ask(ctx)
		if err != nil {
			return err
		}
		if was != nil {
			if forgotten(*was, seen) {
				return &ForgottenError{Was: *was, Is: seen, alone: true}
			}
			seen.Invalidations = slices.Clone(seen.Invalidations)
			for _, id := range was.Invalidations {
				if !slices.Contains(seen.Invalidations, id) {
					seen.Invalidations = append(seen.Invalidations, id)
				}
			}
		}
		if m.seen.CompareAndSwap(was, &seen) {
			return nil
		}
	}
	return errLooking
}

// Close does nothing.
func (m *Memory) Close() error { return nil }
