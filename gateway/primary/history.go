package primary

import (
	"context"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/lock/continuity"
	"github.com/fencegate/fencegate/lock/pglock"
)

// The sources of leases, as fence.lease_source records them.
const (
	SourcePostgres = "postgres"
	SourceRedis    = "redis"
	SourceOther    = "other"
)

const sqlLeasesReady = `SELECT fence.leases_ready()::text`

// history remembers the accepted state of PostgreSQL.
type history interface {
	Look(ctx context.Context, ask func(context.Context) (continuity.State, error)) error
	Close() error
}

// identify is continuity.Ask for the history. Where PostgreSQL grants the leases, the server itself reports whether it
// is the accepted one, because a gateway that has just started remembers nothing.
func identify(ctx context.Context, q continuity.Querier, source string) (continuity.State, error) {
	state, err := continuity.Ask(ctx, q)
	if err == nil && source == SourcePostgres {
		var ready string
		err = q.QueryRow(ctx, sqlLeasesReady).Scan(&ready)
	}
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok && strings.HasPrefix(refused.Code, "ZF1") {
		err = &pglock.SourceError{Reason: refused.Message, Advice: refused.Hint}
	}
	return state, err
}
