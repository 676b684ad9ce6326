package gateway

import (
	"context"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/lock/continuity"
	"github.com/fencegate/fencegate/lock/pglock"
)

const (
	sqlLeasesReady = `SELECT fence.leases_ready()::text`

	sourcePostgres = "postgres" // the values of fence.lease_source
	sourceRedis    = "redis"
	sourceOther    = "other"
)

// history remembers the accepted state of PostgreSQL.
type history interface {
	Look(ctx context.Context, ask func(context.Context) (continuity.Seen, error)) error
	Close() error
}

// claim records the source of the leases in the database once, if none is recorded.
func (s *servers) claim(ctx context.Context) error {
	s.mu.Lock()
	claimed := s.claimed || s.source == ""
	s.mu.Unlock()
	if claimed {
		return nil
	}
	return s.together(ctx, "claim", s.askSource)
}

// identify is continuity.Ask for the history. Where PostgreSQL grants the leases, the server itself reports whether it
// is the accepted one, because a gateway that has just started remembers nothing.
func (s *servers) identify(ctx context.Context, q continuity.Querier) (continuity.Seen, error) {
	seen, err := continuity.Ask(ctx, q)
	if err == nil && s.source == sourcePostgres {
		var ready string
		err = q.QueryRow(ctx, sqlLeasesReady).Scan(&ready)
	}
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok && strings.HasPrefix(refused.Code, "ZF1") {
		err = &pglock.SourceError{Reason: refused.Message, Advice: refused.Hint}
	}
	return seen, err
}

func (s *servers) askSource(ctx context.Context) error {
	settled, err := continuity.Claim(ctx, s.pool, s.source)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.claimed = settled
	s.mu.Unlock()
	return nil
}
