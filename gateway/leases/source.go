package leases

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/lock"
)

// Source is a source of leases that also asks the fence before it extends a lease, and that lists the leases.
type Source struct {
	leasing.Source

	Fence interface {
		Inspect(ctx context.Context, resource string) (fence.Record, error)
	}
	Primary Primary
	Ledger  *Ledger
	Nodes   *Nodes // nil: leases come from elsewhere
	// SealUsed is joined to the refusal of a seal that armed its resource before.
	SealUsed error
	Log      *slog.Logger
}

var _ leasing.Source = Source{}

// Acquire lists the leases that it returns.
func (s Source) Acquire(ctx context.Context, wait leasing.Wait, all ...leasing.Request) ([]leasing.Lease, error) {
	if err := s.Primary.May(ctx); err != nil {
		return nil, err
	}
	leases, err := s.Source.Acquire(ctx, wait, all...)
	for _, lease := range leases {
		s.Ledger.Note(lease.Ref(), lease.Deadline)
	}
	return leases, s.explain(ctx, err)
}

// Ready adds the remaining quarantine to the error.
func (s Source) Ready(ctx context.Context) (degraded string, err error) {
	degraded, err = s.Source.Ready(ctx)
	return degraded, s.explain(ctx, err)
}

// Inspect names the part that did not answer in time.
func (s Source) Inspect(ctx context.Context, resources ...string) ([]leasing.Inspection, error) {
	all, err := s.Source.Inspect(ctx, resources...)
	if err != nil && ctx.Err() != nil && !errors.Is(err, leasing.ErrUnavailable) {
		err = &leasing.UnavailableError{Part: s.Primary.Part(), Cause: err}
	}
	return all, err
}

// Release ends a lease.
func (s Source) Release(ctx context.Context, ref leasing.Ref) error {
	s.Ledger.drop(ref)
	return s.Source.Release(ctx, ref)
}

// Extend fails with [leasing.ErrLost] also if the fence is known to be above the lease's token, or to have ended its
// grant.
func (s Source) Extend(ctx context.Context, ref leasing.Ref, ttl time.Duration) (clock.Instant, error) {
	overtaken := make(chan bool, 1)
	go func() { overtaken <- s.overtaken(ctx, ref) }()
	deadline, err := s.Source.Extend(ctx, ref, ttl)
	switch {
	case err == nil:
		s.Ledger.Note(ref, deadline)
	case errors.Is(err, leasing.ErrLost):
		s.Ledger.drop(ref)
	}
	if <-overtaken && ctx.Err() == nil {
		if err == nil { // others need not wait for its end
			if err := s.Release(ctx, ref); err != nil && !errors.Is(err, leasing.ErrLost) {
				s.Log.Warn("failed to release the lock of a revoked lease; it expires at its TTL", "resource", ref.Resource, "token", ref.Token, "error", err)
			}
		}
		return clock.Instant{}, fmt.Errorf("%w: the fence of %q is above its token %d, or has ended its grant", leasing.ErrLost, ref.Resource, ref.Token)
	}
	return deadline, err
}

// fenceTimeout bounds how long an extension waits for the fence's answer. The extension continues without it:
// PostgreSQL may be away, and the fence guards the writes in any case.
const fenceTimeout = 500 * time.Millisecond

// overtaken reports whether the fence is known to be above the lease's token (revoked, or acquired by another), or to
// have ended its grant (released).
func (s Source) overtaken(ctx context.Context, ref leasing.Ref) bool {
	ctx, cancel := context.WithTimeout(ctx, fenceTimeout)
	defer cancel()
	record, err := s.Fence.Inspect(ctx, ref.Resource)
	return err == nil && (record.Token > ref.Token || record.Token == ref.Token && record.EndedAt != nil)
}

// explain joins what the error of an acquisition means for clients.
func (s Source) explain(ctx context.Context, err error) error {
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok && refused.Code == "22023" && strings.HasPrefix(refused.Message, "seal was used") {
		return fmt.Errorf("%w: %w", s.SealUsed, err)
	}
	if !errors.Is(err, lock.ErrQuarantined) || !errors.Is(err, lock.ErrNoQuorum) {
		return err
	}
	if left := s.Nodes.quarantine(); left > 0 {
		return &leasing.UnavailableError{Part: leasing.PartRedis, Cause: &quarantineError{err, left}}
	}
	return err
}
