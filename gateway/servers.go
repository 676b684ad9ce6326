package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/singleflight"

	"github.com/fencegate/fencegate/gateway/pgwire"
	"github.com/fencegate/fencegate/gateway/s3"
	"github.com/fencegate/fencegate/lock/continuity"
)

// servers decides which server is PostgreSQL: the host to which sessions and the gateway's own connections go, and
// whether that server is the one that the Redis nodes have recorded, or a later state of it. While it is not, no lease
// is granted.
//
// Of several hosts servers chooses the one that the nodes have recorded. If they have no record, it chooses the first
// that satisfies target_session_attrs. It keeps a host until that fails.
type servers struct {
	config  *pgx.ConnConfig           // the gateway's login, with all hosts
	hosts   []pgwire.Upstream         // one way to each
	grace   time.Duration             // for the other hosts, once a suitable one has answered
	history history                   // nil: leases come from elsewhere, and there is no history
	part    string                    // that keeps the history
	keys    *databaseKeys             // the database's own; nil: the keys have a configured prefix
	source  string                    // of the leases, as the database records it; "": unknown to the database
	pool    *pgxpool.Pool             // of the gateway's login
	reads   atomic.Pointer[s3.Server] // caches what it has read of one PostgreSQL; nil: no S3 port
	moved   func(pgwire.Upstream)     // called with each new home, in order; may be nil

	choosing, settling singleflight.Group

	mu       sync.Mutex
	home     pgwire.Upstream  // the chosen host; its Server is "" while unknown
	looked   time.Time        // when home last served; zero: choose again
	left     chan struct{}    // closed when home changes
	last     string           // home's Server, when last known
	accepted *continuity.Seen // the accepted state of home; nil: in doubt
	raised   bool             // whether a fence was raised since the last beat
	claimed  bool             // the database records our source
	doubts   int              // counts the doubts
	refused  bool             // the last look was refused: no lease may be given
}

const (
	// foundFor is how long a check of home counts, because many sessions may begin at once.
	foundFor = time.Second
	// chooseTimeout bounds a choice among the hosts.
	chooseTimeout = 10 * time.Second
	// graceForOthers is short: a dead machine never answers, and logins wait this long.
	graceForOthers = 250 * time.Millisecond
	// graceForRecorded is the wait for the host that the nodes have recorded, once another has answered.
	graceForRecorded = 2 * time.Second
)

func newServers(config *pgx.ConnConfig) *servers {
	s := &servers{config: config, hosts: upstreams(&config.Config), grace: graceForOthers, left: make(chan struct{})}
	s.home = s.hosts[0]
	return s
}

// tell registers f, which is called with each new home, in order. f must not call methods of servers.
func (s *servers) tell(f func(pgwire.Upstream)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.moved = f
}

// suitable returns the host for sessions of the PostgreSQL port.
func (s *servers) suitable(ctx context.Context) ([]pgwire.Upstream, error) {
	home, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	return []pgwire.Upstream{home}, nil
}

// current returns home. With several hosts it has served within foundFor.
func (s *servers) current(ctx context.Context) (pgwire.Upstream, error) {
	s.mu.Lock()
	home, known := s.home, len(s.hosts) == 1 && s.config.ValidateConnect == nil || time.Since(s.looked) < foundFor
	s.mu.Unlock()
	if known {
		return home, nil
	}
	chosen := s.choosing.DoChan("", func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), chooseTimeout)
		defer cancel()
		return nil, s.choose(ctx)
	})
	select {
	case c := <-chosen:
		if c.Err != nil {
			return pgwire.Upstream{}, c.Err
		}
	case <-ctx.Done():
		return pgwire.Upstream{}, ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.home, nil
}

// choose checks whether home still serves, and otherwise asks all hosts.
func (s *servers) choose(ctx context.Context) error {
	if s.serves(ctx) {
		return nil
	}
	fit, accepted, err := s.askAll(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	chosen := fit[0]
	for _, a := range fit { // in doubt: prefer the server that home was
		if accepted == nil && a.seen.Identity != "" && a.seen.Identity == s.home.Server {
			chosen = a
			break
		}
	}
	s.looked = time.Now()
	s.take(chosen.way, chosen.seen.Identity, accepted)
	return nil
}

// serves reports whether home is still the chosen server, as far as a connection to it tells. In doubt it returns
// false: the nodes may have recorded another host.
func (s *servers) serves(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	s.mu.Lock()
	home, accepted, chosen := s.home, s.accepted, !s.looked.IsZero()
	s.mu.Unlock()
	if !chosen || s.history != nil && accepted == nil {
		return false
	}
	a := s.ask(ctx, home)
	defer a.close(ctx)
	full, ok := errors.AsType[*pgconn.PgError](a.err)
	switch {
	case ok && full.Code == "53300": // too_many_connections: the server answers
	case a.err != nil, accepted != nil && !a.seen.Continues(accepted):
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.home == home {
		s.looked = time.Now()
	}
	return true
}

// take sets home. The caller holds s.mu. accepted is nil in doubt.
func (s *servers) take(home pgwire.Upstream, server string, accepted *continuity.Seen) {
	home.Server = server
	if accepted == nil && s.history != nil {
		s.doubts++
	}
	s.accepted = accepted
	if home.Addr == s.home.Addr && home.Server == s.home.Server {
		return
	}
	another := home.Addr != s.home.Addr || s.last != "" && home.Server != "" && home.Server != s.last
	s.home, s.last = home, cmp.Or(home.Server, s.last)
	if another {
		close(s.left)
		s.left = make(chan struct{})
	}
	if s.moved != nil {
		s.moved(home)
	}
}

// doubt drops the accepted state until the nodes are asked again. The caller holds s.mu.
func (s *servers) doubt() {
	s.accepted = nil
	s.doubts++
	s.looked = time.Time{}
	if len(s.hosts) == 1 {
		s.home.Server = ""
	}
}

// here returns a context that ends when home changes.
func (s *servers) here(ctx context.Context) (context.Context, context.CancelFunc) {
	s.mu.Lock()
	left := s.left
	s.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-left:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// pin makes a connection that is about to be made go to home.
func (s *servers) pin(ctx context.Context, config *pgx.ConnConfig) error {
	if len(s.hosts) == 1 {
		return nil
	}
	home, err := s.current(ctx)
	if err != nil {
		return err
	}
	pinned(&config.Config, home.Addr)
	return nil
}

// pinned keeps the addresses of config that lead to one host, and all of them if none does, for example with a pooler
// in between.
func pinned(config *pgconn.Config, addr string) {
	ways := slices.DeleteFunc(waysOf(config), func(f *pgconn.FallbackConfig) bool {
		_, to := pgconn.NetworkAddress(f.Host, f.Port)
		return to != addr
	})
	if len(ways) > 0 {
		config.Host, config.Port, config.TLSConfig, config.Fallbacks = ways[0].Host, ways[0].Port, ways[0].TLSConfig, ways[1:]
	}
}

// answer is the result of asking a host. conn is nil if the host was not reached.
type answer struct {
	host int
	way  pgwire.Upstream
	conn *pgx.Conn
	seen continuity.Seen
	err  error // why the host is unsuitable
}

func (a answer) close(ctx context.Context) {
	if a.conn != nil {
		_ = a.conn.Close(ctx)
	}
}

func notPreferred(err error) bool {
	_, is := errors.AsType[*pgconn.NotPreferredError](err)
	return is
}

// ask logs in to a host as the gateway.
func (s *servers) ask(ctx context.Context, way pgwire.Upstream) answer {
	a := answer{way: way}
	config := s.config.Copy()
	pinned(&config.Config, way.Addr)
	check := config.ValidateConnect
	config.ValidateConnect = nil // ask runs it below, to keep the connection if it fails
	if a.conn, a.err = pgx.ConnectConfig(ctx, config); a.err == nil && check != nil {
		a.err = check(ctx, a.conn.PgConn())
	}
	if a.err == nil && s.history != nil {
		a.seen, _ = continuity.Ask(ctx, a.conn) // an error leaves it unknown
	}
	return a
}

// askAll asks all hosts at once. It returns the suitable ones, the best first: it waits for the one that the nodes
// accept. The error says why none is suitable.
func (s *servers) askAll(ctx context.Context) (fit []answer, accepted *continuity.Seen, err error) {
	ctx, cancel := context.WithCancel(ctx)
	said := make(chan answer, len(s.hosts))
	for i, way := range s.hosts {
		go func() {
			a := s.ask(ctx, way)
			a.host = i
			said <- a
		}()
	}
	waiting := len(s.hosts)
	defer func() {
		cancel()
		for ; waiting > 0; waiting-- {
			(<-said).close(context.WithoutCancel(ctx))
		}
	}()
	var errs []error
	var late <-chan time.Time
	for ; waiting > 0 && accepted == nil; waiting-- {
		var a answer
		select {
		case a = <-said:
		case <-late:
			return ranked(fit, nil), nil, nil
		}
		if a.err != nil && !notPreferred(a.err) {
			a.close(ctx)
			errs = append(errs, fmt.Errorf("%s: %w", a.way.Addr, a.err))
			continue
		}
		accepted = s.accepts(ctx, &a)
		a.close(ctx)
		fit = append(fit, a)
		if late == nil {
			late = time.After(s.patience())
		}
	}
	if len(fit) == 0 {
		return nil, nil, &noHostError{errors.Join(errs...)}
	}
	return ranked(fit, accepted), accepted, nil
}

// noHostError reports that no host can be reached and satisfies target_session_attrs.
type noHostError struct{ why error }

func (e *noHostError) Error() string {
	return "no host satisfies target_session_attrs: " + e.why.Error()
}
func (e *noHostError) Unwrap() error { return e.why }

func ranked(fit []answer, accepted *continuity.Seen) []answer {
	rank := func(a answer) int {
		switch {
		case accepted != nil && a.seen.Identity == accepted.Identity:
			return 0
		case a.err == nil:
			return 1
		}
		return 2
	}
	slices.SortFunc(fit, func(a, b answer) int { return cmp.Or(rank(a)-rank(b), a.host-b.host) })
	return fit
}

// patience is the wait for the other hosts, once a suitable one has answered.
func (s *servers) patience() time.Duration {
	if s.history == nil {
		return s.grace
	}
	return graceForRecorded
}

// accepts returns the state of a host that the nodes have accepted; nil: they have not.
func (s *servers) accepts(ctx context.Context, a *answer) *continuity.Seen {
	if s.history == nil || a.err != nil {
		return nil
	}
	if err := s.history.Look(ctx, func(ctx context.Context) (seen continuity.Seen, err error) {
		a.seen, err = s.identify(ctx, a.conn)
		return a.seen, err
	}); err != nil {
		return nil
	}
	return &a.seen
}
