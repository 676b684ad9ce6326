package pgfence

import (
	"cmp"
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

// End ends a grant, so that every later check refuses it. It is the first step of releasing a lease. It does not
// drain: a transaction that has passed the check may still commit, and the next acquisition drains it. Concurrent
// calls are grouped into one transaction.
//
// It is idempotent. The outcomes:
//   - nil: the grant has ended, by this call or an earlier one.
//   - [*fence.StaleError]: a newer grant has superseded it; nothing was changed.
//   - [*fence.NeverIssuedError]: the fence does not record it; nothing was changed.
//   - [*fence.NotEndedError]: others kept changing the fence until ctx or the drain limit ended; nothing was changed.
//   - joined with [fence.ErrUnknown]: it may have ended. That is harmless: a holder that releases no longer writes, a
//     later acquisition ends the grant in any case, and a late End does not affect another grant.
//   - [*fence.InvalidError], or PostgreSQL's error: nothing was changed.
func (f *Fence) End(ctx context.Context, e fence.Ending) error {
	if err := e.Validate(); err != nil {
		return err
	}
	got, err := f.endings.Do(ctx, e)
	switch {
	case err != nil:
		return fmt.Errorf("end %s: %w", grantName(e), err)
	case got.Done:
		return got.Err
	}
	err = f.endAlone(ctx, e)
	if got.Lost && !core.Settles(err) {
		err = fmt.Errorf("%w: %w", fence.ErrUnknown, err)
	}
	return err
}

// grantName names a grant as [fence.Grant] does.
func grantName(e fence.Ending) string {
	return fence.Grant{Resource: e.Resource, Token: e.Token}.String()
}

// endGroup ends grants in one transaction. It does not wait for a fence that another transaction is changing.
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

// endAlone ends one grant. It waits for transactions that are changing its fence.
func (f *Fence) endAlone(ctx context.Context, e fence.Ending) error {
	conn, err := f.pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("end %s: %w", grantName(e), err)
	}
	errs := make([]error, 1)
	return f.twice(ctx, conn, "end "+grantName(e), func(conn *pgxpool.Conn) (bool, error) {
		answered, err := endOn(ctx, conn, []fence.Ending{e}, f.patience.LimitWithin(ctx), errs)
		return answered, cmp.Or(err, errs[0])
	})
}

// endOn ends grants on one connection and puts each outcome into errs. answered = false: the connection was lost
// before the outcome was known.
func endOn(ctx context.Context, conn *pgxpool.Conn, all []fence.Ending, limit time.Duration, errs []error) (answered bool, err error) {
	mode := conn.Conn().Config().DefaultQueryExecMode
	if mode == pgx.QueryExecModeSimpleProtocol {
		mode = pgx.QueryExecModeExec // keeps the hashes out of the statement's text
	}
	resources, tokens, hashes := make([]string, len(all)), make([]int64, len(all)), make([][]byte, len(all))
	for i, e := range all {
		resources[i], tokens[i], hashes[i] = e.Resource, int64(e.Token), e.SealHash
	}
	rows, _ := conn.Query(ctx, core.SQLEnd, mode, resources, tokens, hashes, limit.Microseconds()) // rows has the error
	var n, answers int
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
		answers++
		return nil
	})
	switch {
	case err != nil:
		return reports.Ended(err), fmt.Errorf("end %d grant(s): %w", len(all), Translate(err))
	case answers != len(all):
		return true, fmt.Errorf("%d answers for %d grants", answers, len(all))
	}
	return true, nil
}
