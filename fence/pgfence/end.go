package pgfence

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/internal/core"
)

const (
	// maxEndings bounds a group: each takes a row lock in PostgreSQL.
	maxEndings = 64
	// groupTimeout bounds a group, whose callers have bounds of their own.
	groupTimeout = 2 * time.Second
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
	one := &ending{Ending: e, answer: make(chan error, 1)}
	if f.endings.add(one) {
		go f.runEndings() //nolint:gosec // it serves whoever queues meanwhile, and goes on when this caller's context ends
	}
	select {
	case err := <-one.answer:
		if errors.Is(err, fence.ErrNotEnded) {
			return f.endPatiently(ctx, e)
		}
		return err
	case <-ctx.Done():
		one.left.Store(true)
		return fmt.Errorf("end %s: %w: %w", named(e), fence.ErrUnknown, context.Cause(ctx))
	}
}

// named names a grant as [fence.Grant] does.
func named(e fence.Ending) string { return fence.Grant{Resource: e.Resource, Token: e.Token}.String() }

// ending is one grant that is to end.
type ending struct {
	fence.Ending

	answer chan error  // holds one
	left   atomic.Bool // its caller waits no more
}

// endings are the grants that wait for the group before them.
type endings struct {
	mu      sync.Mutex
	waiting []*ending
	running bool
}

// add reports whether the caller has to start a run.
func (q *endings) add(one *ending) (first bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = append(q.waiting, one)
	first = !q.running
	q.running = true
	return first
}

// next takes the next group of those whose callers wait; where there is none the run is
// over.
func (q *endings) next() (group []*ending) {
	q.mu.Lock()
	defer q.mu.Unlock()
	taken := 0
	for _, one := range q.waiting {
		if len(group) == maxEndings {
			break
		}
		if taken++; !one.left.Load() {
			group = append(group, one)
		}
	}
	q.waiting = append([]*ending(nil), q.waiting[taken:]...)
	q.running = len(group) > 0
	return group
}

// runEndings ends group after group until nobody waits.
func (f *Fence) runEndings() {
	for group := f.endings.next(); len(group) > 0; group = f.endings.next() {
		ctx, cancel := context.WithTimeout(context.Background(), groupTimeout)
		f.endGroup(ctx, group)
		cancel()
	}
}

// endGroup ends a group in one transaction and answers each caller. Nothing in it
// waits for a fence that another is changing.
func (f *Fence) endGroup(ctx context.Context, group []*ending) {
	all := make([]fence.Ending, len(group))
	for i, one := range group {
		all[i] = one.Ending
	}
	errs := make([]error, len(group))
	what := fmt.Sprintf("end %s", named(all[0]))
	if len(all) > 1 {
		what += fmt.Sprintf(" and %d more", len(all)-1)
	}
	err := f.onOne(ctx, what, func(conn *pgxpool.Conn) (bool, error) { return endOn(ctx, conn, all, 0, errs) })
	for i, one := range group {
		if err != nil {
			errs[i] = err
		}
		one.answer <- errs[i]
	}
}

// endPatiently ends one grant whose fence another is changing, once that is over.
func (f *Fence) endPatiently(ctx context.Context, e fence.Ending) error {
	errs := make([]error, 1)
	err := f.onOne(ctx, "end "+named(e), func(conn *pgxpool.Conn) (bool, error) {
		return endOn(ctx, conn, []fence.Ending{e}, f.patience.LimitWithin(ctx), errs)
	})
	if err != nil {
		return err
	}
	return errs[0]
}

// onOne does it on a connection, and where that is lost once more on another.
func (f *Fence) onOne(ctx context.Context, what string, do func(*pgxpool.Conn) (answered bool, err error)) error {
	conn, err := f.pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return f.twice(ctx, conn, what, do)
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
