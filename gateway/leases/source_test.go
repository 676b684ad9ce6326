package leases

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/fence/clock/clocktest"
	"github.com/fencegate/fencegate/fence/leasing"
)

// extender is a source that extends leases at once.
type extender struct {
	leasing.Source

	clock    *clocktest.Clock
	released []leasing.Ref
}

func (s *extender) Extend(_ context.Context, _ leasing.Ref, ttl time.Duration) (clock.Instant, error) {
	return s.clock.Now().Add(ttl), nil
}

func (s *extender) Release(_ context.Context, ref leasing.Ref) error {
	s.released = append(s.released, ref)
	return nil
}

// An extension also asks the fence, for half a second. It succeeds unless the fence says that the grant is over: then the
// lock is free for others at once.
func TestAnExtensionAsksTheFenceForHalfASecond(t *testing.T) {
	t.Parallel()
	const ttl = 30 * time.Second
	ended := time.Now()
	for name, c := range map[string]struct {
		fence fenceSays
		took  time.Duration
		lost  bool
	}{
		"current":                     {fence: fenceSays{record: fence.Record{Token: 5}}},
		"retired":                     {fence: fenceSays{err: fence.ErrNoFence}},
		"PostgreSQL is away":          {fence: fenceSays{err: errBroken}},
		"PostgreSQL hangs":            {fence: fenceSays{err: errSilent}, took: 500 * time.Millisecond},
		"revoked, or another has it":  {fence: fenceSays{record: fence.Record{Token: 6}}, lost: true},
		"released at another gateway": {fence: fenceSays{record: fence.Record{Token: 5, EndedAt: &ended}}, lost: true},
	} {
		synctest.Test(t, func(t *testing.T) {
			source := &extender{clock: clocktest.New()}
			s := Source{Source: source, Fence: &c.fence, Log: slog.New(slog.DiscardHandler), Ledger: NewLedger()}
			began := time.Now()
			deadline, err := s.Extend(t.Context(), leasing.Ref{Resource: "r", Owner: "o", Token: 5}, ttl)
			if errors.Is(err, leasing.ErrLost) != c.lost || !c.lost && (err != nil || deadline.Left() != ttl-c.took) || time.Since(began) != c.took {
				t.Errorf("%s: valid for %v, %v, after %v", name, deadline.Left(), err, time.Since(began))
			}
			if held := s.Ledger.Count() == 1; held == c.lost || (len(source.released) == 1) != c.lost {
				t.Errorf("%s: held %t, released %v", name, held, source.released)
			}
		})
	}
}
