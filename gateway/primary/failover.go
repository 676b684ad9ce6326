package primary

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/singleflight"

	"github.com/fencegate/fencegate/lock/continuity"
)

// choice is the choice among the hosts of an address.
type choice struct {
	config  *pgx.ConnConfig // the gateway's login, with all hosts
	hosts   []Host
	grace   time.Duration // for the other hosts, once a suitable one has answered
	history history       // nil: leases come from elsewhere, and there is no history
	source  string        // of the leases, as the database records it; "": unknown to the database
	onMove  func(Host)    // called with each new home, in order; may be nil

	choosing singleflight.Group

	mu       sync.Mutex
	home     Host              // the chosen host; its Server is "" while unknown
	servedAt time.Time         // when home last served; zero: choose again
	move     chan struct{}     // closed when home changes
	last     string            // home's Server, when last known
	accepted *continuity.State // the accepted state of home; nil: in doubt
	doubts   int               // counts the doubts
}

const (
	// servedFor is how long a check of home counts, because many sessions may begin at once.
	servedFor = time.Second
	// askTimeout bounds one question to PostgreSQL and to the nodes.
	askTimeout = 3 * time.Second
	// chooseTimeout bounds a choice among the hosts.
	chooseTimeout = 10 * time.Second
	// graceForOthers is short: a dead machine never answers, and logins wait this long.
	graceForOthers = 250 * time.Millisecond
	// graceForRecorded is the wait for the host that the nodes have recorded, once another has answered.
	graceForRecorded = 2 * time.Second
)

func newChoice(config *pgx.ConnConfig) *choice {
	c := &choice{config: config, hosts: hostsOf(&config.Config), grace: graceForOthers, move: make(chan struct{})}
	c.home = c.hosts[0]
	return c
}

// Hosts returns one way to each host of the address.
func (c *choice) Hosts() []Host { return c.hosts }

// OnMove registers f, which is called with each new home, in order. f must not call methods of the Primary.
func (c *choice) OnMove(f func(Host)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.onMove = f
}

// Current returns home. With several hosts it has served within servedFor.
func (c *choice) Current(ctx context.Context) (Host, error) {
	c.mu.Lock()
	home, known := c.home, len(c.hosts) == 1 && c.config.ValidateConnect == nil || time.Since(c.servedAt) < servedFor
	c.mu.Unlock()
	if known {
		return home, nil
	}
	chosen := c.choosing.DoChan("", func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), chooseTimeout)
		defer cancel()
		return nil, c.choose(ctx)
	})
	select {
	case answer := <-chosen:
		if answer.Err != nil {
			return Host{}, answer.Err
		}
	case <-ctx.Done():
		return Host{}, ctx.Err()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.home, nil
}

// choose checks whether home still serves, and otherwise asks all hosts.
func (c *choice) choose(ctx context.Context) error {
	if c.serves(ctx) {
		return nil
	}
	fit, accepted, err := c.askAll(ctx)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	chosen := fit[0]
	for _, a := range fit { // in doubt: prefer the server that home was
		if accepted == nil && a.state.Identity != "" && a.state.Identity == c.home.Server {
			chosen = a
			break
		}
	}
	c.servedAt = time.Now()
	c.take(chosen.way, chosen.state.Identity, accepted)
	return nil
}

// serves reports whether home is still the chosen server, as far as a connection to it tells. In doubt it returns
// false: the nodes may have recorded another host.
func (c *choice) serves(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	c.mu.Lock()
	home, accepted, chosen := c.home, c.accepted, !c.servedAt.IsZero()
	c.mu.Unlock()
	if !chosen || c.history != nil && accepted == nil {
		return false
	}
	a := c.ask(ctx, home)
	defer a.close(ctx)
	full, ok := errors.AsType[*pgconn.PgError](a.err)
	switch {
	case ok && full.Code == "53300": // too_many_connections: the server answers
	case a.err != nil, accepted != nil && !a.state.Continues(accepted):
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.home == home {
		c.servedAt = time.Now()
	}
	return true
}

// take sets home. The caller holds c.mu. accepted is nil in doubt.
func (c *choice) take(home Host, server string, accepted *continuity.State) {
	home.Server = server
	if accepted == nil && c.history != nil {
		c.doubts++
	}
	c.accepted = accepted
	if home.Addr == c.home.Addr && home.Server == c.home.Server {
		return
	}
	another := home.Addr != c.home.Addr || c.last != "" && home.Server != "" && home.Server != c.last
	c.home, c.last = home, cmp.Or(home.Server, c.last)
	if another {
		close(c.move)
		c.move = make(chan struct{})
	}
	if c.onMove != nil {
		c.onMove(home)
	}
}

// doubt drops the accepted state until the nodes are asked again. The caller holds c.mu.
func (c *choice) doubt() {
	c.accepted = nil
	c.doubts++
	c.servedAt = time.Time{}
	if len(c.hosts) == 1 {
		c.home.Server = ""
	}
}

// Here returns a context that ends when home changes.
func (c *choice) Here(ctx context.Context) (context.Context, context.CancelFunc) {
	c.mu.Lock()
	move := c.move
	c.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-move:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// Pin makes a connection that is about to be made go to home.
func (c *choice) Pin(ctx context.Context, config *pgx.ConnConfig) error {
	if len(c.hosts) == 1 {
		return nil
	}
	home, err := c.Current(ctx)
	if err != nil {
		return err
	}
	pin(&config.Config, home.Addr)
	return nil
}

// answer is the result of asking a host. conn is nil if the host was not reached.
type answer struct {
	host  int
	way   Host
	conn  *pgx.Conn
	state continuity.State
	err   error // why the host is unsuitable
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
func (c *choice) ask(ctx context.Context, way Host) answer {
	a := answer{way: way}
	config := c.config.Copy()
	pin(&config.Config, way.Addr)
	check := config.ValidateConnect
	config.ValidateConnect = nil // ask runs it below, to keep the connection if it fails
	if a.conn, a.err = pgx.ConnectConfig(ctx, config); a.err == nil && check != nil {
		a.err = check(ctx, a.conn.PgConn())
	}
	if a.err == nil && c.history != nil {
		a.state, _ = continuity.Ask(ctx, a.conn) // an error leaves it unknown
	}
	return a
}

// askAll asks all hosts at once. It returns the suitable ones, the best first: it waits for the one that the nodes
// accept. The error says why none is suitable.
func (c *choice) askAll(ctx context.Context) (fit []answer, accepted *continuity.State, err error) {
	ctx, cancel := context.WithCancel(ctx)
	said := make(chan answer, len(c.hosts))
	for i, way := range c.hosts {
		go func() {
			a := c.ask(ctx, way)
			a.host = i
			said <- a
		}()
	}
	waiting := len(c.hosts)
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
		accepted = c.accepts(ctx, &a)
		a.close(ctx)
		fit = append(fit, a)
		if late == nil {
			late = time.After(c.patience())
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

func ranked(fit []answer, accepted *continuity.State) []answer {
	rank := func(a answer) int {
		switch {
		case accepted != nil && a.state.Identity == accepted.Identity:
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
func (c *choice) patience() time.Duration {
	if c.history == nil {
		return c.grace
	}
	return graceForRecorded
}

// accepts returns the state of a host that the nodes have accepted; nil: they have not.
func (c *choice) accepts(ctx context.Context, a *answer) *continuity.State {
	if c.history == nil || a.err != nil {
		return nil
	}
	if err := c.history.Look(ctx, func(ctx context.Context) (state continuity.State, err error) {
		a.state, err = identify(ctx, a.conn, c.source)
		return a.state, err
	}); err != nil {
		return nil
	}
	return &a.state
}
