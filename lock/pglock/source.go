package pglock

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/groups"
	"github.com/fencegate/fencegate/internal/lifetime"
)

const (
	// DefaultMaxTTL is the longest lease unless [Config] says otherwise.
	DefaultMaxTTL = 5 * time.Minute
	// MinTTL is the shortest lease, as of every source.
	MinTTL = 300 * time.Millisecond

	maxHolderBytes = 256
)

// Config configures a [Source]. [New] validates it.
type Config struct {
	// Pool connects to the database with a login in the role fence_locker or fence_gateway, whose transactions are READ
	// COMMITTED and may write. The caller owns it, and closes it after the [Source]. With a synchronous standby, its
	// configuration must have been passed to [pgfence.Configure]. While callers wait, the Source opens one more
	// connection with the same configuration to listen. Required.
	Pool *pgxpool.Pool
	// Armer is another fence, which is armed after PostgreSQL's own. Defaults to nil: there is none.
	Armer leasing.Armer
	// Armed is called with each token to which PostgreSQL's fence was raised. Defaults to nil.
	Armed func(resource string, token fence.Token)
	// OnAccepted calls take, which raises fences, if PostgreSQL is the accepted server, and returns take's error.
	// Otherwise it returns an error of its own. Defaults to nil: only the database's own record is checked.
	OnAccepted func(ctx context.Context, take func() error) error
	// MaxTTL is the longest lease. Defaults to [DefaultMaxTTL].
	MaxTTL time.Duration
	// Holder names this process if a request does not. Defaults to host name and process id.
	Holder string
	// Logger logs what no caller receives as an error. Defaults to discarding it.
	Logger *slog.Logger
}

// Source provides the leases of one database. It is safe for concurrent use.
type Source struct {
	cfg     Config
	id      string // of this process in the queue
	takes   groups.Groups[*attempt]
	extends groups.Groups[*extension]
	frees   groups.Groups[*freeing]
	lines   lines
	notices listener
	life    *lifetime.Lifetime
}

// closeTimeout bounds how long Close waits: callers leave their queues, and unused leases are given back.
const closeTimeout = 2 * time.Second

var _ leasing.AllSource = (*Source)(nil)

// Validate checks the configuration as [New] does. The error is a [*fence.InvalidError].
func (c Config) Validate() error {
	_, err := c.withDefaults()
	return err
}

// withDefaults fills in defaults and validates.
func (c Config) withDefaults() (Config, error) {
	c.MaxTTL = cmp.Or(c.MaxTTL, DefaultMaxTTL)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.OnAccepted == nil {
		c.OnAccepted = func(_ context.Context, take func() error) error { return take() }
	}
	if c.Armed == nil {
		c.Armed = func(string, fence.Token) {}
	}
	if c.Holder == "" {
		host, _ := os.Hostname()
		c.Holder = fmt.Sprintf("%s:%d", cmp.Or(host, "unknown"), os.Getpid())
	}
	switch {
	case c.Pool == nil:
		return c, &fence.InvalidError{Field: "pool", Reason: "is missing"}
	case c.MaxTTL < MinTTL || c.MaxTTL > 24*time.Hour:
		return c, &fence.InvalidError{Field: "max ttl", Reason: fmt.Sprintf("is %v; allowed is %v to 24h", c.MaxTTL, MinTTL)}
	}
	return c, validateHolder(c.Holder)
}

// New returns a Source, which connects on first use. The error is a [*fence.InvalidError].
func New(cfg Config) (*Source, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Source{cfg: cfg, id: strings.ToLower(rand.Text()), life: lifetime.New(closeTimeout, leasing.ErrClosed)}
	s.takes = groups.Groups[*attempt]{Settle: s.takeGroup, Key: func(a *attempt) string { return a.resource }, Timeout: groups.Timeout, Pace: groups.Pace}
	s.extends = groups.Groups[*extension]{Settle: s.extendGroup, Key: func(e *extension) string { return e.ref.Resource }, Timeout: groups.Timeout, Pace: groups.Pace}
	s.frees = groups.Groups[*freeing]{Settle: s.freeGroup, Key: func(f *freeing) string { return f.ref.Resource }, Timeout: groups.Timeout, Pace: groups.Pace}
	return s, nil
}

// Close ends all waits, and gives back what they have taken, if PostgreSQL answers. Held leases stay held until they
// expire.
func (s *Source) Close() error { return s.life.Close(nil) }

// Inspect reports who holds a resource.
func (s *Source) Inspect(ctx context.Context, resource string) (leasing.Inspection, error) {
	ins := leasing.Inspection{Resource: resource}
	if err := fence.ValidateResource(resource); err != nil {
		return ins, err
	}
	ctx, cancel, err := s.life.Open(ctx)
	if err != nil {
		return ins, err
	}
	defer cancel()
	err = s.twice(ctx, oneLimit, func(ctx context.Context, conn *pgx.Conn) error {
		return scanned(conn.QueryRow(ctx, sqlInspect, mode(conn), resource), &ins)
	})
	return ins, failure(ctx, fmt.Sprintf("inspect %q", resource), err)
}

// scanned reads a row of fence.lease_of.
func scanned(row pgx.Row, ins *leasing.Inspection) error {
	var owner, holder *string
	var token int64
	var left *int64
	if err := row.Scan(&owner, &holder, &token, &left, &ins.Waiters); err != nil {
		return err
	}
	ins.Token = fence.Token(token)
	if owner != nil && holder != nil && left != nil {
		ins.Locked, ins.Owner, ins.Holder, ins.TTL = true, *owner, *holder, time.Duration(*left)*time.Microsecond
	}
	return nil
}

var _ leasing.Surveyor = (*Source)(nil)

// InspectAll reports who holds each of several resources, in one statement.
func (s *Source) InspectAll(ctx context.Context, resources []string) ([]leasing.Inspection, error) {
	for _, resource := range resources {
		if err := fence.ValidateResource(resource); err != nil {
			return nil, err
		}
	}
	ctx, cancel, err := s.life.Open(ctx)
	if err != nil {
		return nil, err
	}
	defer cancel()
	var all []leasing.Inspection
	err = s.twice(ctx, oneLimit, func(ctx context.Context, conn *pgx.Conn) (err error) {
		rows, _ := conn.Query(ctx, sqlSurvey, mode(conn), resources) // rows returns the error again
		all, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (ins leasing.Inspection, err error) {
			return ins, scanned(row, &ins)
		})
		return err
	})
	if err != nil {
		return nil, failure(ctx, "inspect a page of resources", err)
	}
	for i := range all {
		all[i].Resource = resources[i]
	}
	return all, nil
}

// Ready reports whether leases are available.
func (s *Source) Ready(ctx context.Context) error {
	ctx, cancel, err := s.life.Open(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	err = s.twice(ctx, oneLimit, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, sqlReady)
		return err
	})
	return failure(ctx, "leases of PostgreSQL", err)
}

// validate checks a request and rounds its TTL to whole microseconds.
func (s *Source) validate(r leasing.Request) (leasing.Request, error) {
	r.Holder = cmp.Or(r.Holder, s.cfg.Holder)
	r.TTL = r.TTL.Truncate(time.Microsecond)
	if err := cmp.Or(fence.ValidateResource(r.Resource), s.validateTTL(r.TTL), validateHolder(r.Holder)); err != nil {
		return r, err
	}
	if r.SealHash != nil && len(r.SealHash) != sha256.Size {
		return r, &fence.InvalidError{Field: "seal hash", Reason: fmt.Sprintf("is %d bytes long; a SHA-256 has %d", len(r.SealHash), sha256.Size)}
	}
	return r, nil
}

func (s *Source) validateTTL(ttl time.Duration) error {
	switch {
	case ttl < MinTTL:
		return &fence.InvalidError{Field: "ttl", Reason: fmt.Sprintf("is %v; at least %v is needed", ttl, MinTTL)}
	case ttl > s.cfg.MaxTTL:
		return &fence.InvalidError{Field: "ttl", Reason: fmt.Sprintf("is %v; at most %v is allowed", ttl, s.cfg.MaxTTL)}
	}
	return nil
}

func validateHolder(name string) error {
	switch {
	case len(name) > maxHolderBytes:
		return &fence.InvalidError{Field: "holder", Reason: fmt.Sprintf("is %d bytes long; at most %d are allowed", len(name), maxHolderBytes)}
	case !utf8.ValidString(name):
		return &fence.InvalidError{Field: "holder", Reason: "is not valid UTF-8"}
	case strings.ContainsFunc(name, unicode.IsControl):
		return &fence.InvalidError{Field: "holder", Reason: "contains a control character"}
	}
	return nil
}

func validateRef(ref leasing.Ref) error {
	if ref.Owner == "" {
		return &fence.InvalidError{Field: "owner", Reason: "is missing"}
	}
	return fence.ValidateResource(ref.Resource)
}

// good is a lease's deadline as its holder counts it: from before the first message, minus the margin for clock drift.
func good(start time.Time, ttl time.Duration) time.Time {
	return start.Add(ttl - ttl/100 - 2*time.Millisecond)
}

// isHeld returns the HeldError in err.
func isHeld(err error) (held *leasing.HeldError, ok bool) {
	return held, errors.As(err, &held)
}
