package continuity

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
)

// Memory is the record in this process, for setups without Redis nodes. It notices when the same server was set back. A
// different server is detected by the database itself, see fence.need_source. The zero value is empty.
type Memory struct{ last atomic.Pointer[State] }

var errLooking = errors.New("concurrent checks of PostgreSQL interfered; try again")

// Look is [Nodes.Look]. It holds no lock while it asks PostgreSQL. If another caller looked in between, it asks again,
// so that a state which that caller saw later is never taken for the past.
func (m *Memory) Look(ctx context.Context, ask func(context.Context) (State, error)) error {
	for range 2 * attempts {
		was := m.last.Load()
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
		if m.last.CompareAndSwap(was, &seen) {
			return nil
		}
	}
	return errLooking
}

// Close does nothing.
func (m *Memory) Close() error { return nil }
