package primary

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/singleflight"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/continuity"
)

// Config says how to reach PostgreSQL, and who remembers which server it is.
type Config struct {
	// Pool configures the connections of the gateway's login. [New] makes them lead to the primary. Required.
	Pool *pgxpool.Config
	// Source is the source of the leases as the database records it: [SourcePostgres], [SourceRedis], or another
	// source's name. "": unknown to the database. PostgreSQL that grants the leases remembers its own history.
	Source string
	// Nodes remember the history. None: there is no history, unless PostgreSQL grants the leases.
	Nodes []lock.Node
	// KeyPrefix starts the keys of Nodes.
	KeyPrefix string
	// DatabaseKeys starts them with the database's own prefix instead.
	DatabaseKeys bool
}

// Primary is the server that is PostgreSQL. Its methods are safe for concurrent use.
type Primary struct {
	*choice

	pool       *pgxpool.Pool // of the gateway's login
	keys       *databaseKeys // the database's own; nil: the keys have a configured prefix
	onIdentity atomic.Pointer[func(string)]

	settling singleflight.Group

	// guarded by choice.mu
	raised  bool // whether a fence was raised since the last beat
	claimed bool // the database records our source
	refused bool // the last look was refused: no lease may be given
}

// New opens the pool of the gateway's login, which connects when it is used.
func New(cfg Config) (*Primary, error) {
	p := &Primary{choice: newChoice(cfg.Pool.ConnConfig)}
	p.source = cfg.Source
	if cfg.DatabaseKeys {
		p.keys = &databaseKeys{}
	}
	switch {
	case cfg.Source == SourcePostgres:
		p.history = &continuity.Memory{}
	case len(cfg.Nodes) > 0:
		prefix := lock.Prefix(cfg.KeyPrefix)
		if p.keys != nil {
			prefix = p.keys.prefix
		}
		nodes, err := continuity.New(cfg.Nodes, prefix)
		if err != nil {
			return nil, err
		}
		p.history = nodes
	}
	p.configure(cfg.Pool, true)
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg.Pool)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("pool of the gateway's login: %w", err), p.closeHistory())
	}
	p.pool = pool
	if p.keys != nil {
		p.keys.pool = pool
	}
	return p, nil
}

// Pool is the pool of the gateway's login. Its connections lead to the primary.
func (p *Primary) Pool() *pgxpool.Pool { return p.pool }

// Close closes the pool and forgets the history.
func (p *Primary) Close() error {
	p.pool.Close()
	return p.closeHistory()
}

func (p *Primary) closeHistory() error {
	if p.history == nil {
		return nil
	}
	return p.history.Close()
}

// KeyPrefix returns the prefix of the database's own keys; nil: the keys have a configured one.
func (p *Primary) KeyPrefix() func(context.Context) (string, error) {
	if p.keys == nil {
		return nil
	}
	return p.keys.prefix
}

// Part names what keeps the history, for clients.
func (p *Primary) Part() string {
	if p.source == SourcePostgres {
		return leasing.PartPostgres
	}
	return leasing.PartRedis
}

// OnIdentity registers f, which is called with the identity of the PostgreSQL that a connection leads to; "": one that
// May have forgotten something.
func (p *Primary) OnIdentity(f func(identity string)) { p.onIdentity.Store(&f) }

// Identity identifies the accepted PostgreSQL; "": in doubt, or without a history.
func (p *Primary) Identity() string {
	if accepted := p.known(); accepted != nil {
		return accepted.Identity
	}
	return ""
}

const (
	sqlBeat = `SELECT fence.beat()`

	// lookEvery is how often the identity is compared while nothing else compares it.
	lookEvery = 2 * time.Second

	// confirmTries bounds the retries of a look during which a connection was opened.
	confirmTries = 20
)

// The custom data of a connection: the identity of its server, and whether that was the accepted one at connect time.
const (
	serverKey   = "fencegate.server"
	acceptedKey = "fencegate.accepted"
)

// Configure makes the connections of another login's pool go to home and drops those of another server.
func (p *Primary) Configure(pool *pgxpool.Config) { p.configure(pool, false) }

// configure makes the connections of a pool go to home and drops those of another server.
//
// Another server can appear only on a new connection: after a failover or a restart no old one is left. Each new
// connection is compared with the accepted state; a difference puts everything in doubt until the record is consulted.
// A periodic look finds changes that a proxy hides. judges is false for a login whose connections raise no doubt.
func (p *Primary) configure(pool *pgxpool.Config, judges bool) {
	pool.BeforeConnect = p.Pin
	pool.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		if p.history == nil && p.onIdentity.Load() == nil {
			return nil
		}
		same, elsewhere := p.compare(ctx, conn)
		conn.PgConn().CustomData()[acceptedKey] = same
		switch {
		case p.history == nil || same:
		case judges:
			p.mu.Lock()
			p.doubt()
			p.mu.Unlock()
		case elsewhere: // the gateway's own login meets that server, too
			return errElsewhere
		}
		return nil // the connection may serve what needs no lease
	}
	if p.history == nil {
		return
	}
	pool.PrepareConn = func(ctx context.Context, conn *pgx.Conn) (bool, error) {
		server, known := conn.PgConn().CustomData()[serverKey].(string)
		accepted, _ := conn.PgConn().CustomData()[acceptedKey].(bool)
		p.mu.Lock()
		defer p.mu.Unlock()
		switch {
		case p.accepted != nil: // a connection made in doubt may lead to a copy with the same identity
			return accepted && server == p.accepted.Identity, nil
		case ctx.Value(underGrant{}) != nil:
			return true, continuity.ErrChanging
		}
		return !known || p.home.Server == "" || p.home.Server == server, nil
	}
}

// underGrant marks the context of a write under a grant: its connection must belong to the accepted PostgreSQL.
type underGrant struct{}

// Changes returns a context whose statements run on the accepted PostgreSQL or fail. A PostgreSQL that has forgotten
// fences would admit a superseded grant.
func (p *Primary) Changes(ctx context.Context) (context.Context, error) {
	if p.history == nil {
		return ctx, nil
	}
	if _, err := p.Confirm(ctx); err != nil {
		return nil, p.unconfirmed(err)
	}
	return context.WithValue(ctx, underGrant{}, true), nil
}

// compare reports whether a new, unused connection belongs to the accepted server, and whether it certainly does not.
func (p *Primary) compare(ctx context.Context, conn *pgx.Conn) (same, elsewhere bool) {
	for {
		accepted := p.known() // read before the query, so that the answer is not older
		seen, err := continuity.Ask(ctx, conn)
		if err != nil {
			return false, false
		}
		if accepted == nil && p.known() != nil { // the doubt was settled in the meantime
			continue
		}
		p.identified(seen.Identity)
		conn.PgConn().CustomData()[serverKey] = seen.Identity
		same = seen.Continues(accepted) && seen.Beats >= accepted.Beats // a copy may have written more
		return same, accepted != nil && !same
	}
}

// known returns the accepted state; nil: in doubt.
func (p *Primary) known() *continuity.State {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted
}

// identified passes on PostgreSQL's identity; "": PostgreSQL may have forgotten something.
func (p *Primary) identified(identity string) {
	if f := p.onIdentity.Load(); f != nil {
		(*f)(identity)
	}
}

// Check looks and settles a doubt. It returns nil if PostgreSQL is the accepted one. If this gateway raised fences
// since the last check, Check increments PostgreSQL's beat, and the nodes record it.
func (p *Primary) Check(ctx context.Context) error {
	if p.history == nil {
		return nil
	}
	if err := p.lookAgain(ctx); err != nil {
		return err
	}
	p.mu.Lock()
	raised := p.raised
	p.raised = false
	p.mu.Unlock()
	if !raised {
		return nil
	}
	_, err := p.pool.Exec(ctx, sqlBeat)
	if err == nil {
		err = p.look(ctx)
	}
	if err != nil {
		p.mu.Lock()
		p.raised = true
		p.mu.Unlock()
	}
	return err
}

// lookAgain is look. If home is away or not the accepted one, it chooses among the other hosts first.
func (p *Primary) lookAgain(ctx context.Context) error {
	err := p.look(ctx)
	if err == nil || len(p.hosts) == 1 {
		return err
	}
	p.mu.Lock()
	if !p.servedAt.IsZero() { // the nodes may be away instead
		p.servedAt = time.Now().Add(-servedFor)
	}
	p.mu.Unlock()
	if _, away := p.Current(ctx); away != nil {
		return err
	}
	return p.look(ctx)
}

func (p *Primary) look(ctx context.Context) error {
	p.mu.Lock()
	doubts := p.doubts
	p.mu.Unlock()
	var last continuity.State
	err := p.history.Look(ctx, func(ctx context.Context) (continuity.State, error) {
		var err error
		if last, err = identify(ctx, p.pool, p.source); err != nil || p.keys == nil {
			return last, err
		}
		// A database that was given a new group needs another record and other keys.
		prefix, err := p.keys.prefix(ctx)
		if err == nil && last.KeyPrefix() != prefix {
			err = &continuity.OtherDatabaseError{Is: last, KeyPrefix: prefix}
		}
		return last, err
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	refused := continuity.Refused(err)
	p.refused = refused
	switch {
	case err == nil && doubts == p.doubts:
		p.take(p.home, last.Identity, &last)
		p.identified(last.Identity)
	case refused:
		p.identified("")
		p.doubt()
	}
	return err
}

// Confirm returns nil if all connections so far belong to the accepted PostgreSQL. In doubt it looks again. If a later
// call returns another number of doubts, a doubt arose in between.
func (p *Primary) Confirm(ctx context.Context) (doubts int, err error) {
	if p.history == nil {
		return 0, nil
	}
	for range confirmTries { // the look and others may open connections, which are compared
		p.mu.Lock()
		accepted, doubts := p.accepted != nil, p.doubts
		p.mu.Unlock()
		if accepted {
			return doubts, nil
		}
		if err := p.together(ctx, "check", p.Check); err != nil {
			return 0, err
		}
	}
	return 0, continuity.ErrChanging
}

// together runs ask once for all concurrent callers. While they wait they open no connections, each of which would
// raise the doubt again.
func (p *Primary) together(ctx context.Context, what string, ask func(context.Context) error) error {
	settled := p.settling.DoChan(what, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTimeout)
		defer cancel()
		return nil, ask(ctx)
	})
	select {
	case answer := <-settled:
		return answer.Err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// May refuses a lease before the source is asked if the last look was refused: the locks on the nodes may be another
// database's, whose holders would then wait for this gateway's.
func (p *Primary) May(ctx context.Context) error {
	p.mu.Lock()
	refused := p.refused
	p.mu.Unlock()
	if !refused {
		return nil
	}
	if _, err := p.Confirm(ctx); err != nil {
		return p.unconfirmed(err)
	}
	return nil
}

// Claim records the source of the leases in the database once, if none is recorded.
func (p *Primary) Claim(ctx context.Context) error {
	p.mu.Lock()
	claimed := p.claimed || p.source == ""
	p.mu.Unlock()
	if claimed {
		return nil
	}
	return p.together(ctx, "claim", func(ctx context.Context) error {
		settled, err := continuity.Claim(ctx, p.pool, p.source)
		if err != nil {
			return err
		}
		p.mu.Lock()
		p.claimed = settled
		p.mu.Unlock()
		return nil
	})
}

// begin is Confirm before a fence is raised.
func (p *Primary) begin(ctx context.Context) (doubts int, err error) {
	if err = p.Claim(ctx); err != nil {
		return 0, err
	}
	if doubts, err = p.Confirm(ctx); err == nil {
		p.mu.Lock()
		p.raised = true
		p.mu.Unlock()
	}
	return doubts, err
}

// Watch checks every lookEvery, until ctx ends.
func (p *Primary) Watch(ctx context.Context, report func(error)) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		look, cancel := context.WithTimeout(ctx, askTimeout)
		err := p.Check(look)
		cancel()
		if ctx.Err() == nil {
			report(err)
		}
	}
}

// Arming runs arm and fails unless PostgreSQL stays the confirmed one: arm may have used a new connection.
func (p *Primary) Arming(ctx context.Context, arm func() error) error {
	doubts, err := p.begin(ctx)
	if err != nil {
		return p.unconfirmed(err)
	}
	if err := arm(); err != nil {
		return err
	}
	if after, err := p.Confirm(ctx); err != nil || after != doubts {
		return p.unconfirmed(errors.Join(err, continuity.ErrChanging))
	}
	return nil
}

// unconfirmed names the part that keeps a lease from being granted.
func (p *Primary) unconfirmed(err error) error {
	_, refused := errors.AsType[*pgconn.PgError](err)
	if already, ok := errors.AsType[*leasing.UnavailableError](err); ok {
		return already
	}
	if refused || continuity.Refused(err) || errors.Is(err, continuity.ErrOlder) || errors.Is(err, continuity.ErrChanging) || errors.Is(err, continuity.StandbyError{}) || Unconnected(err) || errors.As(err, new(*continuity.OtherSourceError)) {
		return &leasing.UnavailableError{Part: leasing.PartPostgres, Cause: err}
	}
	return &leasing.UnavailableError{Part: p.Part(), Cause: err}
}

// errElsewhere reports that a session reached a PostgreSQL server other than the accepted one.
var errElsewhere = errors.New("the session reached a PostgreSQL server other than the gateway's; connect again")

// Judge returns a function that reports whether a grant counts on the server that a session has reached. It does not
// where PostgreSQL may have forgotten fences. Call Judge before the session asks for the server's identity.
func (p *Primary) Judge(ctx context.Context) (func(identity string, written uint64) error, error) {
	if _, err := p.Confirm(ctx); err != nil {
		return nil, err
	}
	p.mu.Lock()
	accepted := p.accepted
	p.mu.Unlock()
	return func(identity string, written uint64) error {
		if p.history == nil || (continuity.State{Identity: identity, Written: written}).Continues(accepted) {
			return nil
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.doubt()
		return errElsewhere
	}, nil
}

// Unconnected reports whether a statement was never sent, so that nothing was done.
func Unconnected(err error) bool {
	_, unconnected := errors.AsType[*pgconn.ConnectError](err)
	_, nowhere := errors.AsType[*noHostError](err)
	return unconnected || nowhere
}
