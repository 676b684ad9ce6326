package pgwire

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/fencegate/fencegate/client/wire"
	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
)

// Leases is what sessions need of a [leasing.Source]. It arms with the sessions' own seals.
type Leases interface {
	TryAcquire(ctx context.Context, r leasing.Request) (leasing.Lease, error)
	Acquire(ctx context.Context, r leasing.Request) (leasing.Lease, error)
	Extend(ctx context.Context, ref leasing.Ref, ttl time.Duration) (time.Duration, error)
	Release(ctx context.Context, ref leasing.Ref) error
	Inspect(ctx context.Context, resource string) (leasing.Inspection, error)
}

var _ Leases = leasing.Source(nil)

// inspectTimeout bounds the query for a lease's holder, which serves people only.
const inspectTimeout = 500 * time.Millisecond

// armTimeout is the time that an acquisition may take beyond the requested wait.
const armTimeout = 30 * time.Second

// takeLease acquires the lease that the client asked for. The error is a [*fatalError] if it does not get one,
// errClientGone, or errEnded.
func (s *session) takeLease() error {
	asked, cfg := s.who.lease, &s.srv.cfg
	switch {
	case !s.srv.mayLease(s.srv.permits.Load(), s.who.user, asked.resource):
		return &fatalError{
			code: codeInsufficientPrivilege, message: fmt.Sprintf("the role %s may not lease %q here", quote(s.who.user), asked.resource),
			hint: "A principal or a lease rule of the gateway must give the role this resource.",
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
		Resource: asked.resource, TTL: held.ttl, SealHash: s.seal.Hash(), NonceHash: asked.nonceHash, Holder: s.holder(),
	})
	switch {
	case err == nil:
		s.tellLease(wire.EventAcquired, held)
		s.auditAcquired(held)
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

// holder returns the name of this session's acquisition. No other session of the gateway has it.
func (s *session) holder() string {
	at := s.from()
	if !strings.Contains(at, ":") { // no port: a Unix socket
		at += ", session " + s.id
	}
	return printable(s.who.user) + " at " + at
}

// auditAcquired logs the same line as the HTTP API for each lease of a principal.
func (s *session) auditAcquired(held leased) {
	s.srv.log.Info("a lease was acquired", "resource", held.Grant.Resource, "token", held.Grant.Token, "session", s.id,
		slog.Group("audit", "principal", "pg:"+s.who.user, "client", s.from()))
}

// errForeignSeal reports that the source armed with a seal of its own.
var errForeignSeal = errors.New("this source of leases can't arm with the seal of a session")

// lease acquires. If another client holds the resource beyond the wait, the error is a [*leasing.HeldError] that names
// the current holder.
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
	if seen, err := c.Leases.Inspect(ctx, r.Resource); err == nil && seen.Locked && seen.Holder != r.Holder {
		held.Holder, held.RetryAfter = seen.Holder, max(0, seen.TTL)
	}
	return leasing.Lease{}, &held
}

// lookAgain is how often a waiting session checks whether it waits in vain. The first check is late enough for the
// previous connection of the same pool to end.
const lookAgain = time.Second

// take tries to acquire, and waits if another client holds the resource. It does not wait for a lease that it cannot
// get because its nonce is spent, or holds the resource itself.
func (c *Config) take(ctx context.Context, wait time.Duration, r leasing.Request) (leasing.Lease, error) {
	if why := c.inVain(ctx, r, false); why != nil {
		return leasing.Lease{}, why
	}
	if wait <= 0 {
		lease, err := c.Leases.TryAcquire(ctx, r)
		if errors.Is(err, leasing.ErrHeld) {
			return leasing.Lease{}, cmp.Or(c.inVain(ctx, r, true), err)
		}
		return lease, err
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	looked := make(chan error, 1)
	go func() {
		tick := time.NewTicker(lookAgain)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				looked <- nil
				return
			case <-tick.C:
			}
			if why := c.inVain(ctx, r, true); why != nil {
				cancel()
				looked <- why
				return
			}
		}
	}()
	lease, err := c.Leases.Acquire(ctx, r)
	cancel()
	if why := <-looked; err != nil && why != nil {
		return leasing.Lease{}, why
	}
	return lease, err
}

// inVain returns why waiting is useless, if the fence says so in time; arming decides. held: somebody has the resource.
func (c *Config) inVain(ctx context.Context, r leasing.Request, held bool) error {
	if r.NonceHash == nil || c.Nonce == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, inspectTimeout)
	defer cancel()
	known, err := c.Nonce(ctx, r.Resource, r.NonceHash)
	switch {
	case err != nil:
		return nil //nolint:nilerr // the look is best effort: arming decides
	case known.Spent():
		return &fence.SpentError{Resource: r.Resource, Armed: known.Armed, Recorded: known.Recorded}
	case !held || !known.Holds():
		return nil
	}
	// This very acquisition may be arming: then the lock is its own.
	seen, err := c.Leases.Inspect(ctx, r.Resource)
	if err != nil || !seen.Locked || seen.Holder == r.Holder {
		return nil //nolint:nilerr // the look is best effort: arming decides
	}
	return &ownError{leasing.HeldError{Resource: r.Resource, Holder: seen.Holder, RetryAfter: max(0, seen.TTL)}}
}

// ownError reports that the nonce that asks for the resource already holds it. It is not a [leasing.ErrHeld], because
// waiting does not help.
type ownError struct{ held leasing.HeldError }

func (e *ownError) Error() string {
	return fmt.Sprintf("%q is held by another connection with the same nonce, of this process run", e.held.Resource)
}

// wait removes the login's deadline: the client has logged in, and its lease has a limit of its own. The error says
// that the deadline has passed.
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

// leaseRefusal returns the error for a client that does not get its lease.
func leaseRefusal(resource string, err error) error {
	var held *leasing.HeldError
	var own *ownError
	var spent *fence.SpentError
	var invalid *fence.InvalidError
	code, refused := fence.CodeOf(err)
	switch {
	case errors.As(err, &own):
		return &fatalError{
			code: codeLockNotAvailable, message: own.Error(), detail: heldDetail(own.held),
			hint: "One connection has the lease: let the pool have one connection, or take the lease once and present its grant on each connection.",
		}
	case errors.As(err, &spent):
		return &fatalError{
			code: code.SQLState, message: spent.Error(), hint: code.Hint,
			detail: jsonOf(struct {
				Resource  string      `json:"resource"`
				Presented fence.Token `json:"presented"`
				Recorded  fence.Token `json:"recorded"`
			}{resource, spent.Armed, spent.Recorded}),
		}
	case errors.As(err, &held):
		return &fatalError{
			code: codeLockNotAvailable, message: held.Error(), detail: heldDetail(leasing.HeldError{Resource: resource, Holder: held.Holder, RetryAfter: held.RetryAfter}),
			hint: "Connect again when it is free, or ask for a longer wait: fence.lease=…;wait=30s.",
		}
	case errors.As(err, &invalid):
		return &fatalError{code: codeInvalidParameter, message: "the option fence.lease is invalid: " + invalid.Error()}
	case refused:
		return &fatalError{code: code.SQLState, message: err.Error(), hint: code.Hint}
	}
	hint := "Nothing was done. Try again later; the gateway's log says why."
	if errors.Is(err, fence.ErrUnknown) {
		hint = "Whether the fence was raised is unknown; the lease, if it was taken, is given back or ends at its TTL. Try again later; the gateway's log says why."
	}
	return &fatalError{code: codeCannotConnectNow, message: fmt.Sprintf("no lease of %q is available now", resource), hint: hint, cause: err}
}

func heldDetail(held leasing.HeldError) string {
	return jsonOf(struct {
		Resource   string `json:"resource"`
		Holder     string `json:"holder,omitempty"`
		RetryAfter int64  `json:"retry_after_ms,omitempty"`
	}{held.Resource, held.Holder, held.RetryAfter.Milliseconds()})
}

// heldLease is a lease that is renewed until it is stopped.
type heldLease struct {
	lease leased
	stop  context.CancelFunc
	ended chan struct{}
}

// leased is a session's lease.
type leased struct {
	leasing.Lease

	ttl   time.Duration // the TTL of the acquisition and of each extension
	since time.Time     // when it was requested
}

// keep renews the lease until stop is called, or until it is lost.
func (s *session) keep(lease leased) {
	s.probeFor(lease.ttl)
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

// renew returns why the lease is over; nil if ctx has ended.
func (s *session) renew(ctx context.Context, lease leased) *fatalError {
	deadline, pause := lease.Deadline, lease.ttl/3
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(min(pause, time.Until(deadline))):
		}
		if s.srv.cfg.MayLease != nil && !s.srv.mayLease(s.srv.permits.Load(), s.who.user, lease.Grant.Resource) {
			return &fatalError{
				code: codeInsufficientPrivilege, message: fmt.Sprintf("the role %s may no longer lease %q here", quote(s.who.user), lease.Grant.Resource),
				hint: "A principal or a lease rule of the gateway must give the role this resource.",
			}
		}
		allowed := s.allowed(lease.ttl)
		if allowed < lease.ttl/looksPerTimeout {
			if time.Now().Before(deadline) { // the client may still answer
				pause = min(lease.ttl/12, minProbe)
				continue
			}
			return lostLease(lease, "was not renewed: its client's machine has been silent for a TTL")
		}
		within, cancel := context.WithDeadline(ctx, deadline)
		valid, err := s.srv.cfg.Leases.Extend(within, lease.Ref(), allowed)
		inTime := within.Err() == nil
		cancel()
		if errors.Is(err, leasing.ErrLost) {
			s.srv.cfg.Metrics.LeaseEnded(time.Since(lease.since), true)
			s.tellLease(wire.EventLost, lease)
		}
		switch {
		case err == nil:
			deadline, pause = time.Now().Add(valid), min(lease.ttl, valid)/3
		case errors.Is(err, leasing.ErrLost) && inTime:
			return lostLease(lease, "was taken by another, or revoked")
		case !time.Now().Before(deadline):
			return lostLease(lease, "could not be renewed in time")
		default:
			pause = lease.ttl / 12 // several more attempts before the deadline
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

// releaseTimeout bounds a release; after it the lease expires at its TTL.
const releaseTimeout = 5 * time.Second

// release releases the lease, if there is one.
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
		s.tellLease(wire.EventReleased, lease)
	case !errors.Is(err, leasing.ErrLost): // an ended lease needs no release
		s.log().Warn("failed to release the lease of a PostgreSQL session; it expires at its TTL",
			"resource", lease.Grant.Resource, "token", lease.Grant.Token, "error", err)
	}
}

func jsonOf(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return "" // strings and numbers cannot fail
	}
	return string(b)
}

// maxPrintable keeps a holder's name and address within the limit of lease sources.
const maxPrintable = 100

// printable returns a role's name without control characters and invalid UTF-8.
func printable(name string) string {
	quoted := strconv.QuoteToASCII(truncated(name))
	return quoted[1:min(len(quoted)-1, maxPrintable)]
}
