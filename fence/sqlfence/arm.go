package sqlfence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/internal/core"
)

// Fence arms and inspects the fences of one database. It is safe for concurrent use and stateless. It does not present
// the grants of a context.
//
// Arming waits 200 ms for transactions under a superseded grant to end by themselves before it ends their sessions. The
// context's deadline, and 5 s, bound draining: afterwards arming fails with a [*fence.UndrainedError].
type Fence struct{ db *sql.DB }

// New makes a Fence over a database whose login is a member of fence_gateway.
// Its sessions must run at the default isolation level, READ COMMITTED. It panics
// if db is nil.
func New(db *sql.DB) *Fence {
	if db == nil {
		panic("sqlfence.New: the database is nil")
	}
	return &Fence{db: db}
}

// Arm raises the fence of a resource to a new token and drains the transactions that passed the check under an older
// one, in two round trips. It is idempotent by token and seal hash, so it retries once if an answer is lost. The
// outcomes are those of pgfence:
//   - nil: the fence holds exactly this grant, and no older one can commit any more.
//   - [*fence.NotRaisedError]: the recorded token is not lower; nothing was changed.
//   - [*fence.UndrainedError]: raised, but the new holder must not start yet; or, if its Token is 0, not raised.
//   - joined with [fence.ErrUnknown]: it may be raised; arming the same grant again finds out.
//   - [*fence.InvalidError], or PostgreSQL's error: nothing was changed.
//
// Several fences are raised in one transaction, all or none, in the byte order of their names, and drained one after the
// other. The outcomes are those of all resources together.
func (f *Fence) Arm(ctx context.Context, all ...fence.Arming) error {
	if err := core.ValidateArmings(all); err != nil {
		return err
	}
	what := "arm " + core.ArmingNames(all)
	arm := func(ctx context.Context, db database) (bool, error) { return f.arm(ctx, db, all[0]) }
	if len(all) > 1 {
		all = slices.SortedFunc(slices.Values(all), func(a, b fence.Arming) int { return strings.Compare(a.Resource, b.Resource) })
		arm = func(ctx context.Context, db database) (bool, error) { return f.armAll(ctx, db, all) }
	}
	ctx = WithGrant(ctx)
	conn, err := f.db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return core.Twice(what, func() (bool, error) {
		defer func() { _ = conn.Close() }() // returns it to the pool
		return arm(ctx, conn)
	}, func() (bool, error) {
		if ctx.Err() != nil {
			return false, nil
		}
		return arm(ctx, f.db)
	})
}

// database is a pool or a connection.
type database interface {
	Querier
	BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error)
}

// armAll raises all in one transaction, and drains after its commit.
func (f *Fence) armAll(ctx context.Context, db database, all []fence.Arming) (answered bool, err error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return reports.Ended(err), fmt.Errorf("arm %s: %w", core.ArmingNames(all), reports.Translate(err))
	}
	defer func() { _ = tx.Rollback() }()
	for _, a := range all {
		if answered, err := f.raise(ctx, tx, a); err != nil {
			return answered, err
		}
	}
	if err := tx.Commit(); err != nil {
		return reports.Ended(err), fmt.Errorf("arm %s: %w", core.ArmingNames(all), reports.Translate(err))
	}
	for _, a := range all {
		if answered, err := f.drain(ctx, db, a); err != nil {
			return answered, err
		}
	}
	return true, nil
}

// arm raises and drains. answered = false: the connection was lost before the outcome was known.
func (f *Fence) arm(ctx context.Context, db Querier, a fence.Arming) (answered bool, err error) {
	if answered, err := f.raise(ctx, db, a); err != nil {
		return answered, err
	}
	return f.drain(ctx, db, a)
}

func (f *Fence) raise(ctx context.Context, db Querier, a fence.Arming) (answered bool, err error) {
	raised, recorded, err := ask(ctx, db, core.SQLRaise, a.Resource, int64(a.Token), a.SealHash, a.Holder, limitWithin(ctx))
	return reports.Raised(a, raised, recorded, err)
}

func (f *Fence) drain(ctx context.Context, db Querier, a fence.Arming) (answered bool, err error) {
	ours, recorded, err := ask(ctx, db, core.SQLDrain, a.Resource, int64(a.Token), a.SealHash, core.DefaultPatience.Grace.Microseconds(), limitWithin(ctx))
	return reports.Drained(a, ours, recorded, err)
}

func limitWithin(ctx context.Context) int64 {
	return core.DefaultPatience.LimitWithin(ctx).Microseconds()
}

func ask(ctx context.Context, db Querier, query string, args ...any) (yes bool, recorded fence.Token, err error) {
	var token sql.NullInt64
	err = db.QueryRowContext(ctx, query, args...).Scan(&yes, &token)
	return yes, fence.Token(token.Int64), err
}

// End ends a grant, so that every later check refuses it. It is the first step of releasing a lease. It does not
// drain, and is idempotent. The outcomes are those of pgfence.
func (f *Fence) End(ctx context.Context, e fence.Ending) error {
	if err := e.Validate(); err != nil {
		return err
	}
	ctx = WithGrant(ctx)
	what := fmt.Sprintf("end grant %d of %q", e.Token, e.Resource)
	var hash any // lib/pq sends a nil slice as an empty value, not as NULL
	if e.SealHash != nil {
		hash = e.SealHash
	}
	end := func() (answered bool, err error) {
		var ended, busy bool
		var recorded sql.NullInt64
		err = f.db.QueryRowContext(ctx, core.SQLEndOne, e.Resource, int64(e.Token), hash, core.DefaultPatience.LimitWithin(ctx).Microseconds()).
			Scan(&ended, &busy, &recorded)
		if err != nil {
			return reports.Ended(err), fmt.Errorf("%s: %w", what, reports.Translate(err))
		}
		return true, core.Ended(e, ended, busy, fence.Token(recorded.Int64))
	}
	return core.Twice(what, end, func() (bool, error) {
		if ctx.Err() != nil {
			return false, nil
		}
		return end()
	})
}

// Floor is not known: the Fence is stateless.
func (f *Fence) Floor(string) fence.Token { return 0 }

// Raised reports whether any fence was ever raised in this database.
func (f *Fence) Raised(ctx context.Context) (raised bool, err error) {
	if err = f.db.QueryRowContext(WithGrant(ctx), core.SQLRaised).Scan(&raised); err != nil {
		return false, fmt.Errorf("ask whether a fence was ever raised: %w", reports.Translate(err))
	}
	return raised, nil
}

// Revoke raises the fence past the resource's holder, to a seal that is discarded, and drains that holder's
// transactions. The next acquisition needs a higher token. holder is the name of the operator, for display. Revoke
// returns the new token, or [fence.ErrNoFence]. A [*fence.UndrainedError] comes with the token: the fence is raised,
// but a transaction of the old holder may still commit.
func (f *Fence) Revoke(ctx context.Context, resource, holder string) (fence.Token, error) {
	if err := core.ValidateRevocation(resource, holder); err != nil {
		return 0, err
	}
	ctx = WithGrant(ctx)
	conn, err := f.db.Conn(ctx)
	if err != nil {
		return 0, fmt.Errorf("revoke %q: %w", resource, err)
	}
	var token sql.NullInt64
	var sealHash []byte
	err = conn.QueryRowContext(ctx, core.SQLRevoke, resource, holder).Scan(&token, &sealHash)
	_ = conn.Close() // returns it to the pool
	if err := reports.Revoked(resource, token.Valid, err); err != nil {
		return 0, err
	}
	raised := fence.Token(token.Int64)
	// The fence holds this token already, so arming only drains.
	err = f.Arm(ctx, fence.Arming{Resource: resource, Token: raised, SealHash: sealHash, Holder: holder})
	return raised, core.Drained(resource, raised, err)
}

// Inspect returns what the fence of a resource holds, or [fence.ErrNoFence].
func (f *Fence) Inspect(ctx context.Context, resource string) (fence.Record, error) {
	if err := fence.ValidateResource(resource); err != nil {
		return fence.Record{}, err
	}
	var r fence.Record
	var token int64
	err := f.db.QueryRowContext(WithGrant(ctx), core.SQLInspect, resource).Scan(&r.Resource, &token, &r.Sealed, &r.Holder, &r.ArmedAt, &r.Undrained, &r.EndedAt)
	if errors.Is(err, sql.ErrNoRows) {
		err = fence.ErrNoFence
	}
	if err != nil {
		return fence.Record{}, fmt.Errorf("inspect %q: %w", resource, err)
	}
	r.Token = fence.Token(token)
	return r, nil
}
