package gateway

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/api"
	"github.com/fencegate/fencegate/gateway/fencedsql"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/continuity"
	"github.com/fencegate/fencegate/wire"
)

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

// configure makes the connections of a pool go to home and drops those of another server.
//
// Another server can appear only on a new connection: after a failover or a restart no old one is left. Each new
// connection is compared with the accepted state; a difference puts everything in doubt until the record is consulted.
// A periodic look finds changes that a proxy hides. judges is false for a login whose connections raise no doubt.
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
		case elsewhere: // the gateway's own login meets that server, too
			return errElsewhere
		}
		return nil // the connection may serve what needs no lease
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
		case s.accepted != nil: // a connection made in doubt may lead to a copy with the same identity
			return accepted && server == s.accepted.Identity, nil
		case ctx.Value(underGrant{}) != nil:
			return true, errChanging
		}
		return !known || s.home.Server == "" || s.home.Server == server, nil
	}
}

// underGrant marks the context of a write under a grant: its connection must belong to the accepted PostgreSQL.
type underGrant struct{}

// changes returns a context whose statements run on the accepted PostgreSQL or fail. A PostgreSQL that has forgotten
// fences would admit a superseded grant.
func (s *servers) changes(ctx context.Context) (context.Context, error) {
	if s.history == nil {
		return ctx, nil
	}
	if _, err := s.confirm(ctx); err != nil {
		return nil, s.unconfirmed(err)
	}
	return context.WithValue(ctx, underGrant{}, true), nil
}

// fencedSQL runs the API's statements on the accepted PostgreSQL only.
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

// compare reports whether a new, unused connection belongs to the accepted server, and whether it certainly does not.
func (s *servers) compare(ctx context.Context, conn *pgx.Conn) (same, elsewhere bool) {
	for {
		accepted := s.known() // read before the query, so that the answer is not older
		seen, err := continuity.Ask(ctx, conn)
		if err != nil {
			return false, false
		}
		if accepted == nil && s.known() != nil { // the doubt was settled in the meantime
			continue
		}
		s.saw(seen.Identity)
		conn.PgConn().CustomData()[serverKey] = seen.Identity
		same = seen.Continues(accepted) && seen.Beats >= accepted.Beats // a copy may have written more
		return same, accepted != nil && !same
	}
}

// known returns the accepted state; nil: in doubt.
func (s *servers) known() *continuity.Seen {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.accepted
}

// saw passes PostgreSQL's identity to the cache of reads; "": PostgreSQL may have forgotten something.
func (s *servers) saw(identity string) {
	if reads := s.reads.Load(); reads != nil {
		reads.SawDatabase(identity)
	}
}

// errChanging reports that a connection to another server, or to this one after a restart, was opened during a look.
var errChanging = errors.New("PostgreSQL's connections were replaced meanwhile; acquire again")

// check looks and settles a doubt. It returns nil if PostgreSQL is the accepted one. If this gateway raised fences
// since the last check, check increments PostgreSQL's beat, and the nodes record it.
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

// lookAgain is look. If home is away or not the accepted one, it chooses among the other hosts first.
func (s *servers) lookAgain(ctx context.Context) error {
	err := s.look(ctx)
	if err == nil || len(s.hosts) == 1 {
		return err
	}
	s.mu.Lock()
	if !s.looked.IsZero() { // the nodes may be away instead
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
		if last, err = s.identify(ctx, s.pool); err != nil || s.keys == nil {
			return last, err
		}
		// A database that was given a new group needs another record and other keys.
		prefix, err := s.keys.prefix(ctx)
		if err == nil && last.KeyPrefix() != prefix {
			err = &continuity.OtherDatabaseError{Is: last, KeyPrefix: prefix}
		}
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

// confirm returns nil if all connections so far belong to the accepted PostgreSQL. In doubt it looks again. If a later
// call returns another number of doubts, a doubt arose in between.
func (s *servers) confirm(ctx context.Context) (doubts int, err error) {
	if s.history == nil {
		return 0, nil
	}
	for range confirmTries { // the look and others may open connections, which are compared
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

// together runs ask once for all concurrent callers. While they wait they open no connections, each of which would
// raise the doubt again.
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

// may refuses a lease before the source is asked if the last look was refused: the locks on the nodes may be another
// database's, whose holders would then wait for this gateway's.
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

// watch checks every lookEvery, until ctx ends.
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

// arming runs arm and fails unless PostgreSQL stays the confirmed one: arm may have used a new connection.
func (s *servers) arming(ctx context.Context, arm func() error) error {
	doubts, err := s.begin(ctx)
	if err != nil {
		return s.unconfirmed(err)
	}
	if err := arm(); err != nil {
		return err
	}
	if after, err := s.confirm(ctx); err != nil || after != doubts {
		return s.unconfirmed(errors.Join(err, errChanging))
	}
	return nil
}

// unconfirmed names the part that keeps a lease from being granted.
func (s *servers) unconfirmed(err error) error {
	_, refused := errors.AsType[*pgconn.PgError](err)
	if already, ok := errors.AsType[*leasing.UnavailableError](err); ok {
		return already
	}
	if refused || continuity.Refused(err) || errors.Is(err, continuity.ErrOlder) || errors.Is(err, errChanging) || errors.Is(err, continuity.StandbyError{}) || isUnconnected(err) || errors.As(err, new(*continuity.OtherSourceError)) {
		return &leasing.UnavailableError{Part: wire.PartPostgres, Cause: err}
	}
	return &leasing.UnavailableError{Part: s.part, Cause: err}
}

// openServers creates the history, where there are nodes to keep it, and makes the pool connect to the server that the
// history knows.
func (g *Gateway) openServers() error {
	s := newServers(g.parsed.pool.ConnConfig)
	g.servers, s.part = s, wire.PartRedis
	if g.cfg.DatabaseKeys {
		s.keys = &databaseKeys{}
	}
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
	default:
		prefix := lock.Prefix(g.cfg.KeyPrefix)
		if g.cfg.DatabaseKeys {
			prefix = s.keys.prefix
		}
		nodes, err := continuity.New(g.cfg.RedisNodes, prefix)
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

// errElsewhere reports that a session reached a PostgreSQL server other than the accepted one.
var errElsewhere = errors.New("the session reached a PostgreSQL server other than the gateway's; connect again")

// judge returns a function that reports whether a grant counts on the server that a session has reached. It does not
// where PostgreSQL may have forgotten fences. Call judge before the session asks for the server's identity.
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
