package continuity

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/fence/pgfence"
)

const (
	sqlIdentity = `SELECT pg_catalog.pg_is_in_recovery(), identity, (written - '0/0')::bigint, beats, invalidations, g.id::text, g.database
		FROM fence.identity(), fence.lock_group() g`
	sqlClaim = `SELECT fence.claim_source($1)`
)

// ErrOlder reports a schema without fence.lock_group.
var ErrOlder = errors.New("the database's schema has no fence.lock_group; run: fencegate migrate up")

// StandbyError reports an address that leads to a standby. A standby's
// replay position lags without any loss, so it is never compared.
type StandbyError struct{}

func (StandbyError) Error() string {
	return "PostgreSQL is a standby here (in recovery), where no fence can be raised; name the primary, or promote this one"
}

// Tell returns the text for clients.
func (e StandbyError) Tell() string { return e.Error() }

// OtherSourceError reports that this database's leases come from
// another source. A lease given here could have two holders.
type OtherSourceError struct{ Is, Ours string }

func (e *OtherSourceError) Error() string {
	return fmt.Sprintf("leases of this database come from %s, and those given here from %s; with every gateway and locker stopped, as who migrates: fencegate fence source %s --yes",
		e.Is, e.Ours, e.Ours)
}

// Tell returns the text for clients.
func (e *OtherSourceError) Tell() string { return e.Error() }

// Querier is a pool, a connection or a transaction.
type Querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// KeyPrefix is the database's own prefix, see [pgfence.KeyPrefix].
func (s State) KeyPrefix() string { return pgfence.KeyPrefixOf(s.Group) }

// Ask asks PostgreSQL for its identity. It returns [ErrOlder], a [StandbyError], or the reason why it did not answer.
func Ask(ctx context.Context, q Querier) (State, error) {
	var seen State
	var standby bool
	var written int64
	err := q.QueryRow(ctx, sqlIdentity).Scan(&standby, &seen.Identity, &written, &seen.Beats, &seen.Invalidations, &seen.Group, &seen.Database)
	if undefined(err) {
		return seen, ErrOlder
	}
	if err != nil {
		return seen, fmt.Errorf("ask PostgreSQL which one it is: %w", err)
	}
	if standby {
		return seen, StandbyError{}
	}
	seen.Written = uint64(written)
	return seen, nil
}

// Claim has the database record its lease source (see fence.is_source) if none is recorded. It returns an
// [*OtherSourceError] if another one is recorded. For a schema that records no source, settled is false.
func Claim(ctx context.Context, q Querier, source string) (settled bool, err error) {
	var is string
	switch err := q.QueryRow(ctx, sqlClaim, source).Scan(&is); {
	case undefined(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("ask PostgreSQL where its leases come from: %w", err)
	case is != source:
		return false, &OtherSourceError{Is: is, Ours: source}
	}
	return true, nil
}

// undefined reports a missing function or schema.
func undefined(err error) bool {
	refused, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (refused.Code == "42883" || refused.Code == "3F000")
}

// Continues reports whether s is the accepted server, or a later state of it. accepted is nil if none was accepted.
func (s State) Continues(accepted *State) bool {
	return accepted != nil && s.sameServer(*accepted) && accepted.Written <= s.Written
}
