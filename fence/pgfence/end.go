package pgfence

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/internal/core"
	"github.com/fencegate/fencegate/internal/groups"
)

// End ends a grant, so that each check refuses it from then on: the first step of
// releasing its lease. It drains nobody: a transaction that has passed the check
// may still commit, and the next acquisition drains it as ever. Calls that come
// while others are on their way go together, in one transaction.
//
// It is idempotent. The outcomes:
//   - nil: the grant is over, by this call or an earlier one.
//   - [*fence.StaleError]: a newer one has superseded it; nothing was changed.
//   - [*fence.NeverIssuedError]: the fence does not record it; nothing was changed.
//   - [*fence.NotEndedError]: others kept changing the fence until ctx or the drain limit ended; nothing was changed.
//   - joined with [fence.ErrUnknown]: it may be over. That harms nobody: who releases writes no more, a later acquisition ends the
//     grant in any case, and no other grant is touched however late it happens.
//   - [*fence.InvalidError], or PostgreSQL's error: nothing was changed.
func (f *Fence) End(ctx context.Context, e fence.Ending) error {
	if err := e.Validate(); err != nil {
		return err
	}
	got, err := f.endings.Do(ctx, e)
	switch {
	case err != nil:
		return fmt.Errorf("end %s: %w", named(e), err)
	case got.Done:
		return got.Err
	}
	err = f.endAlone(ctx, e)
	if got.Lost && err != nil && !errors.Is(err, fence.ErrUnknown) && !errors.Is(err, fence.ErrStale) {
		err = fmt.Errorf("%w: %w", fence.ErrUnknown, err)
	}
	return err
}

// named names a grant as [fence.Grant] does.
func named(e fence.Ending) string { return fence.Grant{Resource: e.Resource, Token: e.Token}.String() }

// endGroup ends grants in one transaction. Nothing in it waits for a fence that
// another is changing.
func (f *Fence) endGroup(ctx context.Context, all []fence.Ending) []groups.Settled {
	conn, err := f.pool.Acquire(ctx)
	if err != nil {
		return groups.Unsettled(len(all), false)
	}
	defer conn.Release()
	errs := make([]error, len(all))
	if answered, err := endOn(ctx, conn, all, 0, errs); err != nil {
		return groups.Unsettled(len(all), !answered)
	}
	answers := make([]groups.Settled, len(all))
	for i, err := range errs {
		answers[i] = groups.Settled{Done: !errors.Is(err, fence.ErrNotEnded), Err: err}
	}
	return answers
}

// endAlone ends one grant, once those who are changing its fence have ended.
func (f *Fence) endAlone(ctx context.Context, e fence.Ending) error {
	conn, err := f.pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("end %s: %w", named(e), err)
	}
	errs := make([]error, 1)
	err = f.twice(ctx, conn, "end "+named(e), func(conn *pgxpool.Conn) (bool, error) {
		return endOn(ctx, conn, []fence.Ending{e}, f.patience.LimitWithin(ctx), errs)
	})
	if err != nil {
		return err
	}
	return errs[0]
}

// endOn asks on one connection, and puts each grant's outcome into errs. answered =
// false: the connection was lost, so err says why and not what became of it.
func endOn(ctx context.Context, conn *pgxpool.Conn, all []fence.Ending, limit time.Duration, errs []error) (answered bool, err error) {
	mode := conn.Conn().Config().DefaultQueryExecMode
	if mode == pgx.QueryExecModeSimpleProtocol {
		mode = pgx.QueryExecModeExec // which keeps the hashes out of the statement's text
	}
	resources, tokens, hashes := make([]string, len(all)), make([]int64, len(all)), make([][]byte, len(all))
	for i, e := range all {
		resources[i], tokens[i], hashes[i] = e.Resource, int64(e.Token), e.SealHash
	}
	rows, _ := conn.Query(ctx, core.SQLEnd, mode, resources, tokens, hashes, limit.Microseconds()) // the error comes again from rows
	var n, told int
	var ended, busy bool
	var recorded *int64
	_, err = pgx.ForEachRow(rows, []any{&n, &ended, &busy, &recorded}, func() error {
		if n < 1 || n > len(all) {
			return fmt.Errorf("an answer for grant %d of %d", n, len(all))
		}
		var stands fence.Token
		if recorded != nil {
			stands = fence.Token(*recorded)
		}
		errs[n-1] = core.Ended(all[n-1], ended, busy, stands)
		told++
		return nil
	})
	switch {
	case err != nil:
		return reports.Ended(err), fmt.Errorf("end %d grant(s): %w", len(all), Translate(err))
	case told != len(all):
		return true, fmt.Errorf("%d answers for %d grants", told, len(all))
	}
	return true, nil
}
