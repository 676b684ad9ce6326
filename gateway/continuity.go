package gateway

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/client/wire"
	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/api"
	"github.com/fencegate/fencegate/gateway/witness"
)

const (
	sqlIdentity = `SELECT pg_catalog.pg_is_in_recovery(), identity, (written - '0/0')::bigint, beats, invalidations FROM fence.identity()`
	sqlBeat     = `SELECT fence.beat()`

	// lookEvery is how often the identity is compared while nothing else asks.
	lookEvery = 2 * time.Second
)

// continuity knows whether PostgreSQL is the one that the Redis nodes have
// witnessed, or a later state of it. While it is not, no lease is granted.
//
// A new connection of the pool is where another server can turn up: after a
// failover or a restart no old one is left. Each one is compared with what was
// accepted before; a difference puts everything in doubt until the witness has
// been asked. A look now and then finds what a proxy in between hides.
type continuity struct {
	witness *witness.Witness // nil: leases come from elsewhere, and nobody remembers
	pool    *pgxpool.Pool

	mu       sync.Mutex
	accepted *witness.Seen // nil: in doubt
	raised   bool          // a fence, since the last beat
	doubts   int           // counts how often it was in doubt
}

// compare is called with each new connection, before its first use.
func (c *continuity) compare(ctx context.Context, conn *pgx.Conn) error {
	if c.witness == nil {
		return nil
	}
	c.mu.Lock()
	accepted := c.accepted // from before it is asked: what others see meanwhile is later
	c.mu.Unlock()
	seen, err := identityOf(ctx, conn)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil || accepted == nil || accepted.Identity != seen.Identity || accepted.Written > seen.Written {
		c.accepted = nil
		c.doubts++
	}
	return nil // it serves what needs no lease in any case
}

// errOlder is for schemas from before fence.identity.
var errOlder = errors.New("the database's schema has no fence.identity; run: fencegate migrate up")

// standbyError is for an address that has led to a standby. What it has replayed
// is behind, which is no loss: so it is never compared.
type standbyError struct{}

func (standbyError) Error() string {
	return "PostgreSQL is a standby here (in recovery), where no fence can be raised; name the primary, or promote this one"
}

// Tell is what clients may read.
func (e standbyError) Tell() string { return e.Error() }

func identityOf(ctx context.Context, q interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
},
) (witness.Seen, error) {
	var seen witness.Seen
	var standby bool
	var written int64
	err := q.QueryRow(ctx, sqlIdentity).Scan(&standby, &seen.Identity, &written, &seen.Beats, &seen.Invalidations)
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok && (refused.Code == "42883" || refused.Code == "3F000") { // no function, no schema
		return seen, errOlder
	}
	if err != nil {
		return seen, fmt.Errorf("ask PostgreSQL which one it is: %w", err)
	}
	if standby {
		return seen, standbyError{}
	}
	seen.Written = uint64(written)
	return seen, nil
}

// check looks, and settles a doubt. nil: PostgreSQL is the one that it was.
// Where this gateway raised fences since the last time, it lets PostgreSQL count
// that, and the nodes remember the count.
func (c *continuity) check(ctx context.Context) error {
	if c.witness == nil {
		return nil
	}
	if err := c.look(ctx); err != nil {
		return err
	}
	c.mu.Lock()
	raised := c.raised
	c.raised = false
	c.mu.Unlock()
	if !raised {
		return nil
	}
	_, err := c.pool.Exec(ctx, sqlBeat)
	if err == nil {
		err = c.look(ctx)
	}
	if err != nil {
		c.mu.Lock()
		c.raised = true
		c.mu.Unlock()
	}
	return err
}

func (c *continuity) look(ctx context.Context) error {
	c.mu.Lock()
	doubts := c.doubts
	c.mu.Unlock()
	var last witness.Seen
	err := c.witness.Look(ctx, func(ctx context.Context) (witness.Seen, error) {
		var err error
		last, err = identityOf(ctx, c.pool)
		return last, err
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	_, forgotten := errors.AsType[*witness.ForgottenError](err)
	switch {
	case err == nil && doubts == c.doubts:
		c.accepted = &last
	case forgotten:
		c.accepted = nil
		c.doubts++
	}
	return err
}

// trust returns nil where the connections so far are of the accepted PostgreSQL,
// with a number by which a later call tells whether that has changed since.
func (c *continuity) trust(ctx context.Context) (doubts int, err error) {
	if c.witness == nil {
		return 0, nil
	}
	for range 3 { // the look itself may open a connection, which is compared
		c.mu.Lock()
		trusted, doubts := c.accepted != nil, c.doubts
		c.mu.Unlock()
		if trusted {
			return doubts, nil
		}
		if err := c.check(ctx); err != nil {
			return 0, err
		}
	}
	return 0, errors.New("PostgreSQL's connections come from changing servers")
}

// begin is trust before a fence is raised.
func (c *continuity) begin(ctx context.Context) (doubts int, err error) {
	if doubts, err = c.trust(ctx); err == nil {
		c.mu.Lock()
		c.raised = true
		c.mu.Unlock()
	}
	return doubts, err
}

// watch looks now and then, until ctx ends.
func (c *continuity) watch(ctx context.Context, told func(error)) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		look, cancel := context.WithTimeout(ctx, probeTimeout)
		err := c.check(look)
		cancel()
		if ctx.Err() == nil {
			told(err)
		}
	}
}

// trusting arms only on a PostgreSQL that is the one that it was.
type trusting struct {
	armer      armer
	continuity *continuity
}

var _ armer = trusting{}

func (t trusting) Arm(ctx context.Context, arming fence.Arming) error {
	return t.when(ctx, func() error { return t.armer.Arm(ctx, arming) })
}

// ArmAll arms several resources in one transaction.
func (t trusting) ArmAll(ctx context.Context, all []fence.Arming) error {
	return t.when(ctx, func() error { return t.armer.ArmAll(ctx, all) })
}

// End needs no trust: ending changes the very grant that is meant, or nothing.
func (t trusting) End(ctx context.Context, e fence.Ending) error { return t.armer.End(ctx, e) }

func (t trusting) when(ctx context.Context, arm func() error) error {
	before, err := t.continuity.begin(ctx)
	if err != nil {
		return untrusted(err)
	}
	if err := arm(); err != nil {
		return err
	}
	// It may have been armed on a connection that was new.
	if after, err := t.continuity.trust(ctx); err != nil || after != before {
		return untrusted(errors.Join(err, errors.New("PostgreSQL's connections were replaced while the fence was raised; acquire again")))
	}
	return nil
}

// untrusted says which part keeps a lease from being granted.
func untrusted(err error) error {
	_, forgotten := errors.AsType[*witness.ForgottenError](err)
	_, refused := errors.AsType[*pgconn.PgError](err)
	if forgotten || refused || errors.Is(err, errOlder) || errors.Is(err, standbyError{}) || isUnconnected(err) {
		return &api.UnavailableError{Part: wire.PartPostgres, Cause: err}
	}
	return &api.UnavailableError{Part: wire.PartRedis, Cause: err}
}

// openContinuity makes the memory, where there are nodes to remember, and has
// the pool's new connections compared.
func (g *Gateway) openContinuity() (err error) {
	g.remains = &continuity{}
	if len(g.cfg.RedisNodes) > 0 && !g.cfg.EmbeddedNodes {
		g.remains.witness, err = witness.New(g.cfg.RedisNodes, g.cfg.KeyPrefix)
	}
	g.parsed.pool.AfterConnect = g.remains.compare
	return err
}

func (c *continuity) close() error {
	if c == nil || c.witness == nil {
		return nil
	}
	return c.witness.Close()
}
