package pgfence

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/groups"
	"github.com/fencegate/fencegate/fence/internal/core"
)

// Fence arms and inspects the fences of one database. It is safe for concurrent use. Its only state is the pool, the
// calls in progress, and a cache of floors.
type Fence struct {
	pool     *pgxpool.Pool
	patience core.Patience
	armings  groups.Groups[fence.Arming]
	endings  groups.Groups[fence.Ending]
	floors   floors
	drained  func(took time.Duration, sessions int) // nil: not reported
}

// Option is a choice for [New].
type Option func(*Fence)

// WithGrace sets how long arming waits for transactions under a superseded grant before it ends their sessions.
// Default 200 ms.
func WithGrace(d time.Duration) Option { return func(f *Fence) { f.patience.Grace = d } }

// WithDrainLimit bounds draining, together with the context's deadline:
// afterwards arming fails with a [*fence.UndrainedError]. Default 5 s.
func WithDrainLimit(d time.Duration) Option { return func(f *Fence) { f.patience.Limit = d } }

// WithDrained sets a function that is called after each successful drain of a single resource, with its duration and
// the number of sessions that it ended. The function must not block. Default: none.
func WithDrained(f func(took time.Duration, sessions int)) Option {
	return func(to *Fence) { to.drained = f }
}

// New creates a Fence over a pool whose login is a member of fence_gateway. The caller keeps the pool and closes it.
// Its sessions must run at the default isolation level, READ COMMITTED. If a standby is synchronous, the pool's
// configuration must be prepared by [Configure]. New panics if pool is nil.
func New(pool *pgxpool.Pool, opts ...Option) *Fence {
	if pool == nil {
		panic("pgfence.New: the pool is nil")
	}
	f := &Fence{pool: pool, patience: core.DefaultPatience}
	f.armings = groups.Groups[fence.Arming]{Settle: f.armGroup, Key: func(a fence.Arming) string { return a.Resource }, Timeout: groups.Timeout, Pace: groups.Pace}
	f.endings = groups.Groups[fence.Ending]{Settle: f.endGroup, Key: func(e fence.Ending) string { return e.Resource }, Timeout: groups.Timeout, Pace: groups.Pace}
	f.floors.timeout = learnTimeout
	for _, opt := range opts {
		opt(f)
	}
	return f
}

// Inspect returns what the fence of a resource holds, or [fence.ErrNoFence].
func (f *Fence) Inspect(ctx context.Context, resource string) (fence.Record, error) {
	if err := fence.ValidateResource(resource); err != nil {
		return fence.Record{}, err
	}
	rows, _ := f.pool.Query(ctx, core.SQLInspect, resource) // rows returns the error again
	record, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[fence.Record])
	if errors.Is(err, pgx.ErrNoRows) {
		return fence.Record{}, fmt.Errorf("inspect %q: %w", resource, fence.ErrNoFence)
	}
	if err != nil {
		return fence.Record{}, fmt.Errorf("inspect %q: %w", resource, err)
	}
	return record, nil
}

// List returns at most limit fences whose resource begins with prefix and sorts after `after`, in byte order. For the
// next page, `after` is the last name of this one.
func (f *Fence) List(ctx context.Context, prefix, after string, limit int) ([]fence.Record, error) {
	rows, _ := f.pool.Query(ctx, core.SQLList, prefix, after, limit) // rows returns the error again
	records, err := pgx.CollectRows(rows, pgx.RowToStructByPos[fence.Record])
	if err != nil {
		return nil, fmt.Errorf("list fences below %q: %w", prefix, err)
	}
	return records, nil
}

// RaiseEpoch allocates a durable epoch, higher than `above` and than every earlier one. If the answer is lost, the
// epoch is skipped, which is harmless.
func (f *Fence) RaiseEpoch(ctx context.Context, above int64) (int64, error) {
	var epoch int64
	if err := f.durably(ctx, core.SQLNextEpoch, []any{above}, &epoch); err != nil {
		return 0, fmt.Errorf("raise epoch above %d: %w", above, err)
	}
	return epoch, nil
}

// durably runs a statement that returns one row. It fails if the commit did not reach a synchronous standby.
func (f *Fence) durably(ctx context.Context, sql string, args []any, into ...any) error {
	conn, err := f.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	warnings, err := watchCommit(ctx, conn.Conn())
	if err == nil {
		err = conn.QueryRow(ctx, sql, args...).Scan(into...)
	}
	if err == nil {
		err = warnings.orUnknown("wait for the standby")
	}
	return err
}
