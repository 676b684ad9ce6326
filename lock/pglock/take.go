package pglock

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/groups"
)

const (
	// turnLimit bounds how long taking or freeing a lease waits for other transactions that change the fence.
	turnLimit = 5 * time.Second
	// armTries bounds how often a lease is taken again because the other fence is higher.
	armTries = 3
)

// attempt is one acquisition.
type attempt struct {
	resource, owner, holder string
	ttl                     time.Duration
	seal                    fence.Seal // zero if the caller has it
	sealHash                []byte
	above                   fence.Token // the token must exceed it
	behind                  bool        // queues behind the waiters
	waiter                  string      // the process that waits if the resource is held; "": none
	start                   time.Time
	doubt                   bool // a call got no answer: it may give the lease yet

	token atomic.Int64 // of the lease, if it was given; the group sets it even if the caller has left
}

func (a *attempt) given() fence.Token { return fence.Token(a.token.Load()) }

func (a *attempt) doing() string { return fmt.Sprintf("acquire %q", a.resource) }

// way says how an attempt treats the queue.
type way struct {
	behind bool   // it queues behind the waiters
	waiter string // and joins them under this name; "": it does not
}

// TryAcquire takes the lease of a resource if it is free, even if others wait for it.
func (s *Source) TryAcquire(ctx context.Context, r leasing.Request) (leasing.Lease, error) {
	r, err := s.validate(r)
	if err != nil {
		return leasing.Lease{}, err
	}
	ctx, cancel, err := s.life.Open(ctx)
	if err != nil {
		return leasing.Lease{}, err
	}
	defer cancel()
	return s.acquire(ctx, r, way{})
}

// acquire takes a lease and arms the other fence if there is one.
func (s *Source) acquire(ctx context.Context, r leasing.Request, w way) (leasing.Lease, error) {
	var above fence.Token
	for try := 1; ; try++ {
		a := &attempt{
			resource: r.Resource, owner: rand.Text(), holder: r.Holder, ttl: r.TTL, sealHash: r.SealHash,
			above: above, behind: w.behind, waiter: w.waiter, start: time.Now(),
		}
		if a.sealHash == nil {
			a.seal = fence.NewSeal()
			a.sealHash = a.seal.Hash()
		}
		if ctx.Err() != nil {
			return leasing.Lease{}, context.Cause(ctx)
		}
		err := s.cfg.OnAccepted(ctx, func() error { return s.take(ctx, a) })
		if err == nil {
			err = s.armOther(ctx, a)
		}
		deadline := good(a.start, a.ttl)
		if err == nil && !time.Now().Before(deadline) {
			err = fmt.Errorf("%s: the TTL of %v ended before it was acquired: %w", a.doing(), a.ttl, leasing.ErrLost)
		}
		if err == nil {
			return leasing.Lease{Grant: fence.Grant{Resource: a.resource, Token: a.given(), Seal: a.seal}, Owner: a.owner, Deadline: deadline}, nil
		}
		low, ok := errors.AsType[*fence.NotRaisedError](err)
		switch {
		case !ok && (a.given() > 0 || a.doubt || errors.Is(err, fence.ErrUnknown)):
			if r.Repeatable && r.SealHash != nil && mayBeGood(ctx, a, err) {
				return leasing.Lease{}, &keptError{err}
			}
			s.life.InBackground(func(context.Context) { s.giveBack(a) })
			return leasing.Lease{}, err
		case !ok:
			return leasing.Lease{}, err
		}
		if freed, _ := s.freeBack(context.WithoutCancel(ctx), a); !freed { // now, because the next attempt needs it
			s.life.InBackground(func(context.Context) { s.giveBack(a) })
		}
		if above = low.Recorded; try == armTries {
			return leasing.Lease{}, fmt.Errorf("%w: %w", leasing.ErrHeld, err)
		}
	}
}

// keptError says that an acquisition has failed, and that its lease, if there is one, was not given back: a repeat of the
// request in another process can tell from the caller's seal whose it is, extend it and return it. Only its TTL ends it.
type keptError struct{ error }

func (e *keptError) Unwrap() error { return e.error }

// mayBeGood reports whether a failed attempt may have given a lease, and raised its fence.
func mayBeGood(ctx context.Context, a *attempt, err error) bool {
	unknown := a.doubt || errors.Is(err, fence.ErrUnknown) || errors.Is(err, leasing.ErrLost) || ctx.Err() != nil
	return unknown && !errors.Is(err, fence.ErrUndrained)
}

// armOther arms the other fence.
func (s *Source) armOther(ctx context.Context, a *attempt) error {
	if s.cfg.Armer == nil {
		return nil
	}
	return s.cfg.Armer.Arm(ctx, fence.Arming{Resource: a.resource, Token: a.given(), SealHash: a.sealHash, Holder: a.holder})
}

// take has PostgreSQL give the lease and raise its fence, grouped with others if no waiting is needed.
func (s *Source) take(ctx context.Context, a *attempt) error {
	if a.waiter != "" {
		return s.takeAlone(ctx, a)
	}
	got, err := s.takes.Do(ctx, a)
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", a.doing(), err)
	case got.Done:
		return got.Err
	}
	a.doubt = got.Lost
	return s.takeAlone(ctx, a)
}

// takeGroup takes what is free, in one transaction that waits for no lock.
func (s *Source) takeGroup(ctx context.Context, all []*attempt) []groups.Settled {
	answers, asked := groups.Unsettled(len(all), false), false
	err := s.on(ctx, func(conn *pgx.Conn) error {
		warned, err := pgfence.WatchCommit(ctx, conn)
		if err != nil {
			return err
		}
		asked = true
		return s.takeOn(ctx, conn, all, warned, answers)
	})
	refused := failure(ctx, "acquire", err)
	switch {
	case err != nil && errors.As(refused, new(*SourceError)):
		for i, a := range all {
			answers[i] = groups.Settled{Done: true, Err: failure(ctx, a.doing(), err)}
		}
	case err != nil:
		return groups.Unsettled(len(all), asked && lost(err))
	}
	return answers
}

func (s *Source) takeOn(ctx context.Context, conn *pgx.Conn, all []*attempt, warned func(string) error, answers []groups.Settled) error {
	resources, owners, holders := make([]string, len(all)), make([]string, len(all)), make([]string, len(all))
	ttls, above, hashes, behind := make([]int64, len(all)), make([]int64, len(all)), make([][]byte, len(all)), make([]bool, len(all))
	for i, a := range all {
		resources[i], owners[i], holders[i] = a.resource, a.owner, a.holder
		ttls[i], above[i], hashes[i], behind[i] = a.ttl.Microseconds(), int64(a.above), a.sealHash, a.behind
	}
	rows, _ := conn.Query(ctx, sqlTakeAll, mode(conn), resources, owners, ttls, hashes, holders, above, behind)
	var n int
	var taken, held *bool
	var token, left *int64
	var holder *string
	given := make([]fence.Token, len(all))
	_, err := pgx.ForEachRow(rows, []any{&n, &taken, &held, &token, &holder, &left}, func() error {
		switch a := all[n-1]; {
		case yes(taken) && token != nil:
			given[n-1] = fence.Token(*token)
		case yes(taken):
			answers[n-1] = groups.Settled{Done: true, Err: fmt.Errorf("%s: the TTL of %v ended before it was acquired: %w", a.doing(), a.ttl, leasing.ErrLost)}
		case yes(held):
			answers[n-1] = groups.Settled{Done: true, Err: heldError(a.resource, holder, left)}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for i, token := range given {
		if a := all[i]; token > 0 {
			a.token.Store(int64(token))
			s.cfg.Armed(a.resource, token)
			answers[i] = groups.Settled{Done: true, Err: warned(a.doing())}
		}
	}
	return nil
}

func yes(b *bool) bool { return b != nil && *b }

func heldError(resource string, holder *string, left *int64) *leasing.HeldError {
	held := &leasing.HeldError{Resource: resource}
	if holder != nil {
		held.Holder = *holder
	}
	if left != nil {
		held.RetryAfter = time.Duration(*left) * time.Microsecond
	}
	return held
}

// takeAlone takes one lease when it is its turn, and drains the superseded writers after that commit. A repeated call
// finds the lease that a call with a lost answer took.
func (s *Source) takeAlone(ctx context.Context, a *attempt) error {
	err := s.twice(ctx, takeLimit, func(ctx context.Context, conn *pgx.Conn) error {
		warned, err := pgfence.WatchCommit(ctx, conn)
		if err != nil {
			return err
		}
		if err = s.takeAloneOn(ctx, conn, a); err != nil {
			a.doubt = a.doubt || lost(err)
			return err
		}
		return warned(a.doing())
	})
	switch _, held := isHeld(err); {
	case err == nil, held, errors.Is(err, leasing.ErrLost):
		return err
	case a.doubt && !errors.Is(err, fence.ErrUnknown):
		return fmt.Errorf("%w: %w", fence.ErrUnknown, failure(ctx, a.doing(), err))
	}
	return failure(ctx, a.doing(), err)
}

func (s *Source) takeAloneOn(ctx context.Context, conn *pgx.Conn, a *attempt) error {
	var taken bool
	var token, left *int64
	var holder *string
	var waiter *string
	if a.waiter != "" {
		waiter = &a.waiter
	}
	err := conn.QueryRow(ctx, sqlTake, mode(conn), a.resource, a.owner, a.ttl.Microseconds(), a.sealHash, a.holder, int64(a.above), a.behind,
		waiter, keepPlace.Microseconds(), turnLimit.Microseconds()).Scan(&taken, &token, &holder, &left)
	if err != nil {
		return err
	}
	if !taken || token == nil {
		return heldError(a.resource, holder, left)
	}
	a.token.Store(*token)
	s.cfg.Armed(a.resource, a.given())
	var ours bool
	// Draining must begin after the commit that raised the fence.
	if err := conn.QueryRow(ctx, sqlDrain, mode(conn), a.resource, *token, a.sealHash).Scan(&ours); err != nil {
		return err
	}
	if !ours { // the fence was raised further meanwhile, for example by a revocation
		return fmt.Errorf("%s: the fence was raised above its token %d meanwhile: %w", a.doing(), *token, leasing.ErrLost)
	}
	return nil
}

const (
	backTries   = 4
	backPause   = 200 * time.Millisecond
	backTimeout = 5 * time.Second
)

// giveBack frees what a failed attempt may have taken. If it finds nothing it looks again for a while, since the
// attempt may still be on its way. If PostgreSQL does not answer, it retries for as long as the lease may live.
func (s *Source) giveBack(a *attempt) {
	end := a.start.Add(a.ttl + backTimeout)
	pause := backPause
	for answers := 0; answers < backTries && time.Now().Before(end); {
		freed, answered := s.freeBack(context.Background(), a)
		switch {
		case freed:
			return
		case answered:
			answers++
		default:
			pause = min(2*pause, lookEvery)
		}
		select {
		case <-s.life.Late.Done(): // the lease expires
			return
		case <-time.After(pause):
		}
	}
}

// freeBack tries once, unless Close has ended that. It reports whether nothing is left to free, and whether PostgreSQL answered.
func (s *Source) freeBack(ctx context.Context, a *attempt) (freed, answered bool) {
	ctx, cancel := context.WithTimeout(ctx, backTimeout)
	defer cancel()
	defer context.AfterFunc(s.life.Late, cancel)()
	f := &freeing{ref: leasing.Ref{Resource: a.resource, Owner: a.owner}}
	err := s.free(ctx, f)
	return err == nil && (f.freed || a.given() > 0), err == nil
}
