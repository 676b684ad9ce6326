package pglock

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/groups"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/leases"
)

// store keeps the leases in PostgreSQL, whose fence it raises in the transaction that takes a lease.
type store struct {
	cfg     Config
	env     leases.Env
	id      string // of this process in the queue
	takes   groups.Groups[*attempt]
	extends groups.Groups[*extension]
	frees   groups.Groups[*freeing]
	notices listener
}

var _ leases.Store = (*store)(nil)

// Close has nothing to free: the caller owns the pool.
func (s *store) Close() error { return nil }

// Raise has nothing to raise: tokens are those of the fence.
func (s *store) Raise(context.Context, fence.Token) error { return nil }

// Inspect reports who holds each resource, in one statement.
func (s *store) Inspect(ctx context.Context, resources []string) (all []leasing.Inspection, err error) {
	err = s.twice(ctx, oneLimit, func(ctx context.Context, conn *pgx.Conn) (err error) {
		rows, _ := conn.Query(ctx, sqlInspect, mode(conn), resources) // rows returns the error again
		all, err = pgx.CollectRows(rows, inspection)
		return err
	})
	if err != nil {
		return nil, failure(ctx, "inspect leases", err)
	}
	for i := range all {
		all[i].Resource = resources[i]
	}
	return all, nil
}

// inspection reads a row of fence.lease_of.
func inspection(row pgx.CollectableRow) (ins leasing.Inspection, err error) {
	var owner, holder *string
	var token int64
	var left *int64
	if err := row.Scan(&owner, &holder, &token, &left, &ins.Waiters); err != nil {
		return ins, err
	}
	ins.Token = fence.Token(token)
	if owner != nil && holder != nil && left != nil {
		ins.Locked, ins.Owner, ins.Holder, ins.TTL = true, *owner, *holder, time.Duration(*left)*time.Microsecond
	}
	return ins, nil
}

// Ready reports whether leases are available.
func (s *store) Ready(ctx context.Context) error {
	err := s.twice(ctx, oneLimit, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, sqlReady)
		return err
	})
	return failure(ctx, "leases of PostgreSQL", err)
}
