package gateway

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/client/wire"
	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/api"
	"github.com/fencegate/fencegate/gateway/fencedsql"
	"github.com/fencegate/fencegate/lock/continuity"
)

const (
	sqlBeat = `SELECT fence.beat()`

	// lookEvery is how often the identity is compared while nothing else asks.
	lookEvery = 2 * time.Second

	// confirmTries bounds how often PostgreSQL is looked at anew because a connection was opened meanwhile.
	confirmTries = 20
)

// What a connection carries: the identity of its server, and whether that was the accepted one when it was made.
const (
	serverKey   = "fencegate.server"
	acceptedKey = "fencegate.accepted"
)

// configure has the connections of a pool go to home, and those of another server left.
//
// A new connection is where another server can turn up: after a failover or a restart
// no old one is left. Each one is compared with what was accepted before; a difference
// puts everything in doubt until the record has been asked. A look now and then finds
// what a proxy in between hides. judges is false for a login of which nothing is concluded.
func (s *servers) configure(pool *pgxpool.Config, judges bool) {
	pool.BeforeConnect = s.pin
	pool.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		if s.history == nil && s.reads.Load() == nil {
			return nil
		}
		same, elsewhere := s.compare(ctx, conn)
		conn.PgConn().CustomData()[acceptedKey] = same
		switch {
		case s.history == nil || same:
		case judges:
			s.mu.Lock()
			s.doubt()
			s.mu.Unlock()
		case elsewhere: // the gateway's login will meet it, too
			return errElsewhere
		}
		return nil // it serves what needs no lease in any case
	}
	if s.history == nil {
		return
	}
	pool.PrepareConn = func(ctx context.Context, conn *pgx.Conn) (bool, error) {
		server, known := conn.PgConn().CustomData()[serverKey].(string)
		accepted, _ := conn.PgConn().CustomData()[acceptedKey].(bool)
		s.mu.Lock()
		defer s.mu.Unlock()
		switch {
		case s.accepted != nil: // one that was made in doubt may lead to a copy, of the same name
			return accepted && server == s.accepted.Identity, nil
		case ctx.Value(underGrant{}) != nil:
			return true, errChanging
		}
		return !known || s.home.Server == "" || s.home.Server == server, nil
	}
}

// underGrant marks the context of a write under a grant: its connection has to be of the accepted PostgreSQL.
type underGrant struct{}

// changes has what is done with the context's connections done on the accepted PostgreSQL, or not at all: where it may have forgotten
// fences, a grant that a newer one had superseded would pass.
func (s *servers) changes(ctx context.Context) (context.Context, error) {
	if s.history == nil {
		return ctx, nil
	}
	if _, err := s.confirm(ctx); err != nil {
		return nil, s.unconfirmed(err)
	}
	return context.WithValue(ctx, underGrant{}, true), nil
}

// fencedSQL runs requests of the API, on the accepted PostgreSQL only.
type fencedSQL struct {
	*fencedsql.Runner

	servers *servers
}

var _ api.SQL = fencedSQL{}

// Run implements [api.SQL].
func (f fencedSQL) Run(ctx context.Context, grant fence.Grant, statements []wire.Statement) ([]wire.Result, error) {
	ctx, err := f.servers.changes(ctx)
	if err != nil {
		return nil, err
	}
	return f.Runner.Run(ctx, grant, statements)
}

// compare reports whether a new connection, before its first use, is one of the accepted server, or certainly is not.
func (s *servers) compare(ctx context.Context, conn *pgx.Conn) (same, elsewhere bool) {
	for {
		accepted := s.known() // from before it is asked: what others see meanwhile is later
		seen, err := continuity.Ask(ctx, conn)
		if err != nil {
			return false, false
		}
		if accepted == nil && s.known() != nil { // the doubt was settled meanwhile
			continue
		}
		s.saw(seen.Identity)
		conn.PgConn().CustomData()[serverKey] = seen.Identity
		same = seen.Continues(accepted) && seen.Beats >= accepted.Beats // a copy may have written more
		return same, accepted != nil && !same
	}
}

// known is what was accepted; nil: in doubt.
func (s *servers) known() *continuity.Seen {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.accepted
}

// saw tells whoever remembers reads which PostgreSQL is there; "" one that has forgotten something.
func (s *servers) saw(identity string) {
	if reads := s.reads.Load(); reads != nil {
		reads.SawDatabase(identity)
	}
}

// errChanging: between two looks a connection to another server, or to this one after a restart, was opened.
var errChanging = errors.New("PostgreSQL's connections were replaced meanwhile; acquire again")

// check looks, and settles a doubt. nil: PostgreSQL is the one that it was.
// Where this gateway raised fences since the last time, it lets PostgreSQL count
// that, and the nodes remember the count.
func (s *servers) check(ctx context.Context) error {
	if s.history == nil {
		return nil
	}
	if err := s.lookAgain(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	raised := s.raised
	s.raised = false
	s.mu.Unlock()
	if !raised {
		return nil
	}
	_, err := s.pool.Exec(ctx, sqlBeat)
	if err == nil {
		err = s.look(ctx)
	}
	if err != nil {
		s.mu.Lock()
		s.raised = true
		s.mu.Unlock()
	}
	return err
}

// lookAgain is look. Where home is away, or is not the one that it was, another host may be.
func (s *servers) lookAgain(ctx context.Context) error {
	err := s.look(ctx)
	if err == nil || len(s.hosts) == 1 {
		return err
	}
	s.mu.Lock()
	if !s.looked.IsZero() { // it may be the nodes that are away
		s.looked = time.Now().Add(-foundFor)
	}
	s.mu.Unlock()
	if _, away := s.current(ctx); away != nil {
		return err
	}
	return s.look(ctx)
}

func (s *servers) look(ctx context.Context) error {
	s.mu.Lock()
	doubts := s.doubts
	s.mu.Unlock()
	var last continuity.Seen
	err := s.history.Look(ctx, func(ctx context.Context) (continuity.Seen, error) {
		var err error
		last, err = s.identify(ctx, s.pool)
		return last, err
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	refused := continuity.Refused(err)
	s.refused = refused
	switch {
	case err == nil && doubts == s.doubts:
		s.take(s.home, last.Identity, &last)
		s.saw(last.Identity)
	case refused:
		s.saw("")
		s.doubt()
	}
	return err
}

// confirm returns nil if the connections so far are of the accepted PostgreSQL. If that is in doubt, it looks anew. A later
// call that returns another number says that the doubt was raised in between.
func (s *servers) confirm(ctx context.Context) (doubts int, err error) {
	if s.history == nil {
		return 0, nil
	}
	for range confirmTries { // the look itself, and others meanwhile, may open connections, which are compared
		s.mu.Lock()
		accepted, doubts := s.accepted != nil, s.doubts
		s.mu.Unlock()
		if accepted {
			return doubts, nil
		}
		if err := s.together(ctx, "check", s.check); err != nil {
			return 0, err
		}
	}
	return 0, errChanging
}

// together asks once for all who are in doubt at the same time. While they wait they open no connections, each of which would
// begin the doubt anew.
func (s *servers) together(ctx context.Context, what string, ask func(context.Context) error) error {
	settled := s.settling.DoChan(what, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeTimeout)
		defer cancel()
		return nil, ask(ctx)
	})
	select {
	case s := <-settled:
		return s.Err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// may refuses a lease before anybody is asked for it, where the last look said that none may be given: the locks on the nodes may
// be another database's, whose holders would wait for them.
func (s *servers) may(ctx context.Context) error {
	s.mu.Lock()
	refused := s.refused
	s.mu.Unlock()
	if !refused {
		return nil
	}
	if _, err := s.confirm(ctx); err != nil {
		return s.unconfirmed(err)
	}
	return nil
}

// begin is confirm before a fence is raised.
func (s *servers) begin(ctx context.Context) (doubts int, err error) {
	if err = s.claim(ctx); err != nil {
		return 0, err
	}
	if doubts, err = s.confirm(ctx); err == nil {
		s.mu.Lock()
		s.raised = true
		s.mu.Unlock()
	}
	return doubts, err
}

// watch looks now and then, until ctx ends.
func (s *servers) watch(ctx context.Context, told func(error)) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		look, cancel := context.WithTimeout(ctx, probeTimeout)
		err := s.check(look)
		cancel()
		if ctx.Err() == nil {
			told(err)
		}
	}
}

// unchanged does what counts only on the PostgreSQL that before looked at: it may have been done on a connection that was new.
func (s *servers) unchanged(ctx context.Context, before func(context.Context) (doubts int, err error), do func() error) error {
	doubts, err := before(ctx)
	if err != nil {
		return s.unconfirmed(err)
	}
	if err := do(); err != nil {
		return err
	}
	if after, err := s.confirm(ctx); err != nil || after != doubts {
		return s.unconfirmed(errors.Join(err, errChanging))
	}
	return nil
}

// unconfirmed says which part keeps a lease from being granted.
func (s *servers) unconfirmed(err error) error {
	_, refused := errors.AsType[*pgconn.PgError](err)
	if refused || continuity.Refused(err) || errors.Is(err, continuity.ErrOlder) || errors.Is(err, errChanging) || errors.Is(err, errKeysUnknown) || errors.Is(err, continuity.StandbyError{}) || isUnconnected(err) || errors.As(err, new(*continuity.OtherSourceError)) {
		return &api.UnavailableError{Part: wire.PartPostgres, Cause: err}
	}
	return &api.UnavailableError{Part: s.part, Cause: err}
}

// openServers makes the memory, where there are nodes to remember, and has the pool go to
// the server that it knows.
func (g *Gateway) openServers() error {
	s := newServers(g.parsed.pool.ConnConfig)
	g.servers, s.part = s, wire.PartRedis
	switch {
	case g.cfg.PostgresLeases:
		s.source, s.part, s.history = sourcePostgres, wire.PartPostgres, &continuity.Memory{}
	case g.cfg.Leases != nil:
		s.source = cmp.Or(g.cfg.LeaseSource, sourceOther)
	case len(g.cfg.RedisNodes) > 0:
		s.source = sourceRedis
	}
	switch {
	case len(g.cfg.RedisNodes) == 0 || g.cfg.EmbeddedNodes:
	case g.cfg.DatabaseKeys:
		g.own = &ownHistory{}
		s.history = g.own
	default:
		nodes, err := continuity.New(g.cfg.RedisNodes, g.cfg.KeyPrefix)
		if err != nil {
			return err
		}
		s.history = nodes
	}
	s.configure(g.parsed.pool, true)
	return nil
}

func (s *servers) close() error {
	if s == nil || s.history == nil {
		return nil
	}
	return s.history.Close()
}

// errElsewhere: a session has reached another server than the one that is PostgreSQL for this gateway.
var errElsewhere = errors.New("the session reached another PostgreSQL server than the one that the gateway uses; connect again")

// judge returns what tells of a server that a session has reached whether a grant counts there: not where PostgreSQL may have
// forgotten fences. It is to be called before the session asks which server that is.
func (s *servers) judge(ctx context.Context) (func(identity string, written uint64) error, error) {
	if _, err := s.confirm(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	accepted := s.accepted
	s.mu.Unlock()
	return func(identity string, written uint64) error {
		if s.history == nil || (continuity.Seen{Identity: identity, Written: written}).Continues(accepted) {
			return nil
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.doubt()
		return errElsewhere
	}, nil
}
