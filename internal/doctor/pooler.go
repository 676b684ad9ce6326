package doctor

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/internal/pooler"
)

// checkPooler detects a pooler in transaction mode. A grant in a session's settings is lost there, or reaches another
// client.
func checkPooler(ctx context.Context, config *pgx.ConnConfig) Finding {
	const check = "postgresql.pooler"
	mixed, relayed, err := pooler.MixesSessions(ctx, config)
	switch {
	case mixed:
		return fail(check, "statements of one session run in different server sessions, or wait for other sessions: a pooler in transaction mode is in between",
			"Name PostgreSQL itself, or a pooler in session mode. Through this one only grants per transaction work (fence.use, pgfence.InTx), and no gateway.")
	case err != nil:
		return unseen(check, err)
	case relayed:
		return ok(check, "a proxy is in between; it keeps sessions separate")
	}
	return ok(check, "none seen: each session has a server process of its own")
}
