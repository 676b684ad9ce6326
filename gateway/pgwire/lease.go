package pgwire

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
)

// Leases is what sessions need of a [leasing.Source]: it arms with the seals that they
// bring.
type Leases interface {
	TryAcquire(ctx context.Context, r leasing.Request) (leasing.Lease, error)
	Acquire(ctx context.Context, r leasing.Request) (leasing.Lease, error)
	Extend(ctx context.Context, ref leasing.Ref, ttl time.Duration) (time.Duration, error)
	Release(ctx context.Context, ref leasing.Ref) error
	Inspect(ctx context.Context, resource string) (leasing.Inspection, error)
}

var _ Leases = leasing.Source(nil)

// leaseAsked is a fence.lease of the startup options: RESOURCE[;ttl=30s][;wait=5s],
// the name percent-encoded.
type leaseAsked struct {
	resource  string
	ttl, wait time.Duration
}

// leaseAsked is nil where none is asked for. The error is a [*fatalError].
func (f fenceSettings) leaseAsked() (*leaseAsked, error) {
	invalid := func(why string) (*leaseAsked, error) {
		return nil, &fatalError{
			code: codeInvalidParameter, message: "the option fence.lease " + why,
			hint: "Write fence.lease=RESOURCE, or RESOURCE;ttl=30s;wait=5s, the name percent-encoded.",
		}
	}
	switch {
	case f.emptyLease: // whoever goes on would write without the lease that he means to have
		return invalid("names no resource")
	case f.lease == "":
		return nil, nil //nolint:nilnil // none is asked for
	case f.resource != "" || f.token != "" || f.grants != "":
		return invalid("can't come together with a grant: it brings its own")
	}
	name, options, more := strings.Cut(f.lease, ";")
	resource, err := fence.UnescapeResource(name)
	if err != nil {
		return invalid("names no resource: " + err.Error())
	}
	l := leaseAsked{resource: resource}
	times := map[string]*time.Duration{"ttl": &l.ttl, "wait": &l.wait}
	var option string
	for more {
		option, options, more = strings.Cut(options, ";")
		name, value, _ := strings.Cut(option, "=")
		into := times[name]
		if into == nil {
			return invalid("has " + quote(option) + ", which is neither ttl nor wait, or comes twice")
		}
		delete(times, name)
		*into, err = time.ParseDuration(value)
		if err != nil || *into < 0 || name == "ttl" && *into == 0 {
			return invalid("has " + quote(option) + ", which is no duration such as 30s")
		}
	}
	return &l, nil
}

// inspectTimeout bounds the look at who holds a lease; it serves people only.
const inspectTimeout = 500 * time.Millisecond

// armTimeout is what an acquisition may take beyond the wait that was asked for.
const armTimeout = 30 * time.Second

// takeLease acquires what the client asked for. It returns a [*fatalError] where
// it does not get it, errClientGone, or errEnded.
func (s *session) takeLease() error {
	asked, cfg := s.who.lease, &s.srv.cfg
	switch {
	case !cfg.mayLease(s.who.user, asked.resource):
		return &fatalError{
			code: codeInsufficientPrivilege, message: fmt.Sprintf("the role %s may not lease %q here", quote(s.who.user), asked.resource),
			hint: "A lease rule of the gateway must give the role this resource.",
		}
	case asked.wait > cfg.MaxLeaseWait:
		return &fatalError{code: codeInvalidParameter, message: fmt.Sprintf("the option fence.lease waits %v; at most %v are allowed", asked.wait, cfg.MaxLeaseWait)}
	}
	if err := s.wait(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(s.opening, asked.wait+armTimeout)
	defer cancel()
	held := leased{ttl: cmp.Or(asked.ttl, cfg.DefaultTTL), since: time.Now()}
	var err error
	held.Lease, err = cfg.lease(ctx, asked.wait, leasing.Request{
		Resource: asked.resource, TTL: held.ttl, SealHash: s.seal.Hash(), Holder: printable(s.who.user) + " at " + s.from(),
	})
	switch {
	case err == nil:
		s.keep(held)
		s.mu.Lock()
		s.claims[0].token = held.Grant.Token
		s.mu.Unlock()
		return nil
	case s.opening.Err() == nil:
		return leaseRefusal(asked.resource, err)
	case s.ending():
		return errEnded
	}
	return errClientGone
}

// errForeignSeal: the source armed with a seal of its own.
var errForeignSeal = errors.New("this source of leases can't arm with the seal of a session")

// lease acquires. Where another outlasts the wait, the error is a
// [*leasing.HeldError] that names the holder of now.
func (c *Config) lease(ctx context.Context, wait time.Duration, r leasing.Request) (leasing.Lease, error) {
	if r.TTL > c.MaxTTL {
		return leasing.Lease{}, &fence.InvalidError{Field: "ttl", Reason: fmt.Sprintf("is over the longest that is granted, %v", c.MaxTTL)}
	}
	lease, err := c.take(ctx, wait, r)
	switch {
	case err == nil && !lease.Grant.Seal.IsZero():
		return leasing.Lease{}, errors.Join(errForeignSeal, c.Leases.Release(context.WithoutCancel(ctx), lease.Ref()))
	case err == nil, !errors.Is(err, leasing.ErrHeld), ctx.Err() != nil:
		return lease, err
	}
	held := leasing.HeldError{Resource: r.Resource}
	if found, ok := errors.AsType[*leasing.HeldError](err); ok {
		held.Holder, held.RetryAfter = found.Holder, found.RetryAfter
	}
	ctx, cancel := context.WithTimeout(ctx, inspectTimeout)
	defer cancel()
	if seen, err := c.Leases.Inspect(ctx, r.Resource); err == nil && seen.Locked {
		held.Holder, held.RetryAfter = seen.Holder, max(0, seen.TTL)
	}
	return leasing.Lease{}, &held
}

func (c *Config) take(ctx context.Context, wait time.Duration, r leasing.Request) (leasing.Lease, error) {
	if wait <= 0 {
		return c.Leases.TryAcquire(ctx, r)
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	return c.Leases.Acquire(ctx, r)
}

// wait lifts the login's deadline: the client has logged in, and its lease has a
// limit of its own. The error says that it came too late.
func (s *session) wait() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closing != notClosing:
		return errEnded
	case s.expired:
		return os.ErrDeadlineExceeded
	}
	s.patient = true
	return s.raw.SetDeadline(time.Time{})
}

// leaseRefusal is what a client is told that does not get its lease.
func leaseRefusal(resource string, err error) error {
	var held *leasing.HeldError
	var invalid *fence.InvalidError
	code, refused := fence.CodeOf(err)
	switch {
	case errors.As(err, &held):
		return &fatalError{
			code: codeLockNotAvailable, message: held.Error(),
			detail: jsonOf(struct {
				Resource   string `json:"resource"`
				Holder     string `json:"holder,omitempty"`
				RetryAfter int64  `json:"retry_after_ms,omitempty"`
			}{resource, held.Holder, held.RetryAfter.Milliseconds()}),
			hint: "Connect again when it is free, or ask for a longer wait: fence.lease=…;wait=30s.",
		}
	case errors.As(err, &invalid):
		return &fatalError{code: codeInvalidParameter, message: "the option fence.lease asks for what can't be had: " + invalid.Error()}
	case refused:
		return &fatalError{code: code.SQLState, message: err.Error(), hint: code.Hint}
	}
	return &fatalError{
		code: codeCannotConnectNow, message: fmt.Sprintf("no lease of %q can be had now", resource),
		hint: "Nothing was done. Try again later; the gateway's log says why.", cause: err,
	}
}

// heldLease is a lease that is renewed until it is stopped.
type heldLease struct {
	lease leased
	stop  context.CancelFunc
	ended chan struct{}
}

// leased is a lease that a session has.
type leased struct {
	leasing.Lease

	ttl   time.Duration // it was acquired for, and is extended by
	since time.Time     // it was asked for
}

// keep renews the lease until over, or until it is lost.
func (s *session) keep(lease leased) {
	ctx, stop := context.WithCancel(context.Background())
	held := &heldLease{lease: lease, stop: stop, ended: make(chan struct{})}
	s.held = held
	go func() {
		defer close(held.ended)
		defer s.recovered()
		if why := s.renew(ctx, lease); why != nil && ctx.Err() == nil {
			s.mu.Lock()
			s.cutLocked(why)
			s.mu.Unlock()
		}
	}()
}

// renew returns why the lease is over; nil where ctx has ended.
func (s *session) renew(ctx context.Context, lease leased) *fatalError {
	deadline, pause := lease.Deadline, lease.ttl/3
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(min(pause, time.Until(deadline))):
		}
		within, cancel := context.WithDeadline(ctx, deadline)
		valid, err := s.srv.cfg.Leases.Extend(within, lease.Ref(), lease.ttl)
		inTime := within.Err() == nil
		cancel()
		if errors.Is(err, leasing.ErrLost) {
			s.srv.cfg.Metrics.LeaseEnded(time.Since(lease.since), true)
		}
		switch {
		case err == nil:
			deadline, pause = time.Now().Add(valid), lease.ttl/3
		case errors.Is(err, leasing.ErrLost) && inTime:
			return lostLease(lease, "was taken by another, or revoked")
		case !time.Now().Before(deadline):
			return lostLease(lease, "could not be renewed in time")
		default:
			pause = lease.ttl / 12 // several more tries before the deadline
		}
	}
}

func lostLease(lease leased, how string) *fatalError {
	code, _ := fence.CodeOf(fence.ErrStale)
	return &fatalError{
		code: code.SQLState, message: fmt.Sprintf("the lease of %q is over: it %s", lease.Grant.Resource, how), hint: code.Hint,
		detail: jsonOf(struct {
			Resource  string      `json:"resource"`
			Presented fence.Token `json:"presented"`
		}{lease.Grant.Resource, lease.Grant.Token}),
	}
}

// releaseTimeout bounds giving a lease back; it ends by itself after that.
const releaseTimeout = 5 * time.Second

// release gives the lease back, where there is one.
func (s *session) release() {
	if s.held == nil {
		return
	}
	s.held.stop()
	<-s.held.ended
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	lease := s.held.lease
	switch err := s.srv.cfg.Leases.Release(ctx, lease.Ref()); {
	case err == nil:
		s.srv.cfg.Metrics.LeaseEnded(time.Since(lease.since), false)
	case !errors.Is(err, leasing.ErrLost): // one that is over already needs no release
		s.log().Warn("the lease of a PostgreSQL session could not be released; it ends by itself",
			"resource", lease.Grant.Resource, "token", lease.Grant.Token, "error", err)
	}
}

func jsonOf(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return "" // strings and numbers can't fail
	}
	return string(b)
}

// maxPrintable keeps a holder's name, with its address, below the limit of leases'
// sources.
const maxPrintable = 100

// printable shows a role's name where control characters and other than UTF-8
// have no place.
func printable(name string) string {
	quoted := strconv.QuoteToASCII(truncated(name))
	return quoted[1:min(len(quoted)-1, maxPrintable)]
}
