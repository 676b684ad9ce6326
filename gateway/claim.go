package gateway

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/gateway/witness"
	"github.com/fencegate/fencegate/lock/pglock"
)

const (
	sqlClaim       = `SELECT fence.claim_source($1)`
	sqlLeasesReady = `SELECT fence.leases_ready()::text`

	sourcePostgres = "postgres" // as fence.lease_source has it
)

// witnessing remembers what PostgreSQL was.
type witnessing interface {
	Look(ctx context.Context, ask func(context.Context) (witness.Seen, error)) error
	Close() error
}

// otherSourceError: the leases of this database come from elsewhere, so one that this gateway gives could have two holders.
type otherSourceError struct{ is, ours string }

func (e *otherSourceError) Error() string {
	return fmt.Sprintf("leases of this database come from %s, and this gateway's from %s; with every gateway stopped, as the schema's owner: SELECT fence.set_source('%s')",
		e.is, e.ours, e.ours)
}

// Tell is what clients may read.
func (e *otherSourceError) Tell() string { return e.Error() }

// claim has the database record where its leases come from, where nothing is recorded, once.
func (s *servers) claim(ctx context.Context) error {
	s.mu.Lock()
	claimed := s.claimed || s.source == ""
	s.mu.Unlock()
	if claimed {
		return nil
	}
	return s.together(ctx, "claim", s.askSource)
}

// identify is identityOf for who remembers. Where the leases are PostgreSQL's own, it says by itself whether it is the server
// that was accepted: a gateway that has just started remembers nothing.
func (s *servers) identify(ctx context.Context, q interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
},
) (witness.Seen, error) {
	seen, err := identityOf(ctx, q)
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
	var is string
	err := s.pool.QueryRow(ctx, sqlClaim, s.source).Scan(&is)
	refused, ok := errors.AsType[*pgconn.PgError](err)
	switch {
	case ok && (refused.Code == "42883" || refused.Code == "3F000"): // an older schema records no source, or there is none
		return nil
	case err != nil:
		return fmt.Errorf("ask PostgreSQL where its leases come from: %w", err)
	case is != s.source:
		return &otherSourceError{is: is, ours: s.source}
	}
	s.mu.Lock()
	s.claimed = true
	s.mu.Unlock()
	return nil
}
