package pgfence

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/internal/core"
)

// armAll raises the fences of several resources in one transaction, in the byte order of their names.
func (f *Fence) armAll(ctx context.Context, all []fence.Arming) error {
	all = slices.SortedFunc(slices.Values(all), func(a, b fence.Arming) int { return strings.Compare(a.Resource, b.Resource) })
	conn, err := f.pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("arm %s: %w", core.ArmingNames(all), err)
	}
	return f.twice(ctx, conn, "arm "+core.ArmingNames(all), func(conn *pgxpool.Conn) (answered bool, err error) {
		return f.armAllOn(ctx, conn, all)
	})
}

// armAllOn raises and drains on one connection. answered = false: the connection was lost before the outcome was
// known.
func (f *Fence) armAllOn(ctx context.Context, conn *pgxpool.Conn, all []fence.Arming) (answered bool, err error) {
	warnings, err := watchCommit(ctx, conn.Conn())
	if err != nil {
		return ended(err) || errors.Is(err, ErrNoticesUnavailable), fmt.Errorf("arm %s: %w", core.ArmingNames(all), err)
	}
	resources, tokens, hashes, holders := columns(all)
	none := func(err error) error {
		return fmt.Errorf("raise the fences of %s: %w", core.ArmingNames(all), Translate(err))
	}
	ask := func(sql string, args ...any) (yes bool, resource string, recorded fence.Token, err error) {
		var r *string
		var n *int64
		// Never the simple protocol: it would put the hashes into the statement's text.
		err = conn.QueryRow(ctx, sql, append([]any{pgx.QueryExecModeExec}, args...)...).Scan(&yes, &r, &n)
		if r != nil && n != nil {
			resource, recorded = *r, fence.Token(*n)
		}
		return yes, resource, recorded, err
	}
	overtaken := func(resource string, recorded fence.Token) error {
		i := slices.Index(resources, resource)
		if i < 0 {
			return fmt.Errorf("arm %s: %w", core.ArmingNames(all), fence.ErrNotRaised)
		}
		return &fence.NotRaisedError{Resource: resource, Offered: all[i].Token, Recorded: recorded}
	}

	raised, resource, recorded, err := ask(core.SQLRaiseAll, resources, tokens, hashes, holders, f.patience.LimitWithin(ctx).Microseconds())
	switch {
	case err != nil:
		return ended(err), none(err)
	case !raised:
		return true, overtaken(resource, recorded)
	}
	// Draining must begin after this commit.
	ours, resource, recorded, err := ask(core.SQLDrainAll, resources, tokens, hashes, f.patience.Grace.Microseconds(), f.patience.LimitWithin(ctx).Microseconds())
	switch {
	case err != nil:
		return ended(err), undrainedAll(all, err)
	case !ours: // another acquisition raised it further in between
		return true, overtaken(resource, recorded)
	}
	return true, warnings.orUnknown(fmt.Sprintf("arm %s", core.ArmingNames(all)))
}

// undrainedAll says that all fences are raised, whatever error stopped the drain.
func undrainedAll(all []fence.Arming, err error) error {
	translated := Translate(err)
	if errors.Is(translated, fence.ErrUndrained) || !ended(err) {
		return fmt.Errorf("drain %s: %w", core.ArmingNames(all), translated)
	}
	return reports.Undrained(all[0], err)
}
