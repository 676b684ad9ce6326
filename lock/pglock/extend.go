package pglock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/fence/groups"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/leases"
)

// extension is one renewal.
type extension struct {
	ref  leasing.Ref
	ttl  time.Duration
	done bool
}

func (e *extension) doing() string { return fmt.Sprintf("extend %q", e.ref.Resource) }

// Extend gives a lease a new time to live, counted from now. It
// never shortens a lease. Renewals of one process are grouped.
func (s *store) Extend(ctx context.Context, ref leasing.Ref, ttl time.Duration) (clock.Instant, error) {
	start, ttl := s.env.Clock.Now(), ttl.Truncate(time.Microsecond)
	e := &extension{ref: ref, ttl: ttl}
	if err := s.extend(ctx, e); err != nil {
		return clock.Instant{}, err
	}
	if !e.done {
		return clock.Instant{}, fmt.Errorf("%s: %w", e.doing(), leasing.ErrLost)
	}
	return leases.Good(start, ttl), nil
}

func (s *store) extend(ctx context.Context, e *extension) error {
	got, err := s.extends.Do(ctx, e)
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", e.doing(), err)
	case got.Done:
		return got.Err
	}
	err = s.twice(ctx, oneLimit, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := extendOn(ctx, conn, []*extension{e}, true)
		return err
	})
	return failure(ctx, e.doing(), err)
}

// extendGroup extends those whose rows are not locked, in one transaction.
func (s *store) extendGroup(ctx context.Context, all []*extension) []groups.Settled {
	answers := groups.Unsettled(len(all), false)
	err := s.on(ctx, func(conn *pgx.Conn) error {
		busy, err := extendOn(ctx, conn, all, false)
		for i := range busy {
			answers[i].Done = !busy[i]
		}
		return err
	})
	refused := failure(ctx, "extend", err)
	switch {
	case err == nil:
	case errors.As(refused, new(*SourceError)):
		for i, e := range all {
			answers[i] = groups.Settled{Done: true, Err: failure(ctx, e.doing(), err)}
		}
	default:
		return groups.Unsettled(len(all), lost(err))
	}
	return answers
}

// extendOn sends the renewals on one connection, and reports which of them have to be sent alone.
func extendOn(ctx context.Context, conn *pgx.Conn, all []*extension, wait bool) (busy []bool, err error) {
	warned, err := pgfence.WatchCommit(ctx, conn)
	if err != nil {
		return nil, err
	}
	resources, owners, ttls := make([]string, len(all)), make([]string, len(all)), make([]int64, len(all))
	for i, e := range all {
		resources[i], owners[i], ttls[i] = e.ref.Resource, e.ref.Owner, e.ttl.Microseconds()
	}
	var n int
	var extended, isBusy bool
	done := make([]bool, len(all))
	busy = make([]bool, len(all))
	rows, _ := conn.Query(ctx, sqlExtend, mode(conn), resources, owners, ttls, wait) // rows returns the error again
	_, err = pgx.ForEachRow(rows, []any{&n, &extended, &isBusy}, func() error {
		done[n-1], busy[n-1] = extended, isBusy
		return nil
	})
	if err == nil {
		err = warned("extend")
	}
	if err != nil {
		return nil, err
	}
	for i, e := range all {
		e.done = done[i]
	}
	return busy, nil
}

// freeing is one release. If the lease was not there, and a try before got no answer, that try may have freed it.
type freeing struct {
	ref   leasing.Ref
	freed bool // the lease was there
	doubt bool // a try got no answer
}

func (f *freeing) doing() string { return fmt.Sprintf("release %q", f.ref.Resource) }

// Free ends a lease and its grant, in one commit. Releases of one process are grouped.
func (s *store) Free(ctx context.Context, ref leasing.Ref) error {
	f := &freeing{ref: ref}
	err := s.free(ctx, f)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return unavailable(f.doing(), err)
	case err == nil && !f.freed && !f.doubt:
		return fmt.Errorf("%s: %w", f.doing(), leasing.ErrLost)
	}
	return err
}

func (s *store) free(ctx context.Context, f *freeing) error {
	got, err := s.frees.Do(ctx, f)
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", f.doing(), err)
	case got.Done:
		return got.Err
	}
	isBusy := false
	f.doubt = got.Lost
	err = s.twice(ctx, oneLimit, func(ctx context.Context, conn *pgx.Conn) error {
		busy, err := freeOn(ctx, conn, []*freeing{f}, turnLimit)
		isBusy = err == nil && busy[0]
		f.doubt = f.doubt || lost(err)
		return err
	})
	if isBusy {
		return unavailable(f.doing(), errBusy)
	}
	return failure(ctx, f.doing(), err)
}

// freeGroup frees those whose turn is free, in one transaction.
func (s *store) freeGroup(ctx context.Context, all []*freeing) []groups.Settled {
	answers := groups.Unsettled(len(all), false)
	err := s.on(ctx, func(conn *pgx.Conn) error {
		busy, err := freeOn(ctx, conn, all, 0)
		for i := range busy {
			answers[i].Done = !busy[i]
		}
		return err
	})
	if err != nil {
		return groups.Unsettled(len(all), lost(err))
	}
	return answers
}

func freeOn(ctx context.Context, conn *pgx.Conn, all []*freeing, limit time.Duration) (busy []bool, err error) {
	resources, owners := make([]string, len(all)), make([]string, len(all))
	for i, f := range all {
		resources[i], owners[i] = f.ref.Resource, f.ref.Owner
	}
	var n int
	var freed, isBusy bool
	done := make([]bool, len(all))
	busy = make([]bool, len(all))
	rows, _ := conn.Query(ctx, sqlFree, mode(conn), resources, owners, limit.Microseconds()) // rows returns the error again
	_, err = pgx.ForEachRow(rows, []any{&n, &freed, &isBusy}, func() error {
		done[n-1], busy[n-1] = freed, isBusy
		return nil
	})
	if err != nil {
		return nil, err
	}
	for i, f := range all {
		f.freed = done[i]
	}
	return busy, nil
}
