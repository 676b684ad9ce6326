package continuity

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Each connection carries the identity of its server, and whether this connection continued the accepted server or was
// checked against the nodes. A copy of a server has the same identity.
const (
	serverKey  = "fencegate.server"
	trustedKey = "fencegate.trusted"
)

func mark(conn *pgx.Conn, identity string, trusted bool) {
	data := conn.PgConn().CustomData()
	data[serverKey], data[trustedKey] = identity, trusted
}

func isTrusted(conn *pgx.Conn) bool {
	trusted, _ := conn.PgConn().CustomData()[trustedKey].(bool)
	return trusted
}

func isOf(conn *pgx.Conn, server *State) bool {
	return conn.PgConn().CustomData()[serverKey] == server.Identity
}

// configure has each new connection compared. A connection is used only if the nodes have recorded its server. The
// caller's AfterConnect runs first, since it may set the rights that the comparison needs.
func (a *Armer) configure(config *pgxpool.Config) {
	connected, prepare := config.AfterConnect, config.PrepareConn
	//nolint:staticcheck // callers may still set it, and the pool ignores it beside a PrepareConn
	if before := config.BeforeAcquire; prepare == nil && before != nil {
		prepare = func(ctx context.Context, conn *pgx.Conn) (bool, error) { return before(ctx, conn), nil }
	}
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		if connected != nil {
			if err := connected(ctx, conn); err != nil {
				return err
			}
		}
		return a.compare(ctx, conn)
	}
	config.PrepareConn = func(ctx context.Context, conn *pgx.Conn) (bool, error) {
		switch same, err := a.vet(ctx, conn); {
		case Refused(err): // not left in the pool for a caller that is no longer in doubt
			return false, err
		case err != nil && conn.IsClosed() && ctx.Err() == nil: // only this connection ended; another may answer
			return false, nil
		case err != nil:
			return !conn.IsClosed(), err
		case !same || prepare == nil:
			return same, nil
		}
		return prepare(ctx, conn)
	}
}

// compare trusts a new connection to the accepted server, and otherwise puts everything in doubt. A connection whose
// server can't be identified is not used.
func (a *Armer) compare(ctx context.Context, conn *pgx.Conn) error {
	a.mu.Lock()
	accepted := a.accepted // read before the server is asked: a state that others see after that is later
	a.mu.Unlock()
	for {
		seen, err := Ask(ctx, conn)
		a.mu.Lock()
		if err == nil && accepted == nil && a.accepted != nil { // other callers have settled the doubt
			accepted = a.accepted
			a.mu.Unlock()
			continue
		}
		trusted := err == nil && seen.Continues(accepted) && accepted.Beats <= seen.Beats
		if !trusted {
			a.doubt()
		}
		a.mu.Unlock()
		if err == nil {
			mark(conn, seen.Identity, trusted)
		}
		return err
	}
}

// vet reports whether a connection leads to the accepted server. In doubt, or if the connection is not trusted, the
// nodes decide by what this connection reports.
func (a *Armer) vet(ctx context.Context, conn *pgx.Conn) (same bool, err error) {
	a.mu.Lock()
	accepted := a.accepted
	a.mu.Unlock()
	switch {
	case accepted == nil, isOf(conn, accepted) && !isTrusted(conn):
		return true, a.look(ctx, conn, false)
	default:
		return isOf(conn, accepted), nil
	}
}

// doubt needs a.mu. The server is unknown until the nodes have been asked again. A doubt that arises during a doubt is
// the same one: a connection that is opened in between is not trusted either.
func (a *Armer) doubt() {
	if a.accepted == nil {
		return
	}
	a.accepted = nil
	a.doubts++
}
