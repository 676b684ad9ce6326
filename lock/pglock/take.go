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
	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/fence/groups"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/leases"
)

// turnLimit bounds how long taking or freeing a lease waits for other transactions that change the fence.
const turnLimit = 5 * time.Second

// attempt is one acquisition.
type attempt struct {
	r     leasing.Request
	owner string
	way   way
	start clock.Instant
	doubt bool         // a call got no answer: it may give the lease yet
	token atomic.Int64 // of the lease, if it was given; the group sets it even if the caller has left
}

func (a *attempt) given() fence.Token { return fence.Token(a.token.Load()) }

func (a *attempt) doing() string { return fmt.Sprintf("acquire %q", a.r.Resource) }

// way says how an attempt treats the queue.
type way struct {
	behind bool   // it queues behind the waiters
	waiter string // and joins them under this name; "": it does not
}

// Take takes the lease of a resource if it is free, even if others wait for it.
func (s *store) Take(ctx context.Context, r leasing.Request) (leases.Taken, error) {
	return s.acquire(ctx, r, way{})
}

// acquire takes a lease. If that fails it gives back what it may have taken, unless a repeat may find it.
func (s *store) acquire(ctx context.Context, r leasing.Request, w way) (leases.Taken, error) {
	r.TTL = r.TTL.Truncate(time.Microsecond)
	a := &attempt{r: r, owner: rand.Text(), way: w, start: s.env.Clock.Now()}
	giveBack := func() { s.env.Life.InBackground(func(context.Context) { s.giveBack(a) }) }
	err := s.cfg.OnAccepted(ctx, func() error { return s.take(ctx, a) })
	switch {
	case err == nil:
		return leases.Taken{Resource: r.Resource, Owner: a.owner, Token: a.given(), Deadline: leases.Good(a.start, r.TTL)}, nil
	case a.given() == 0 && !a.doubt && !errors.Is(err, fence.ErrUnknown):
		return leases.Taken{}, err
	case r.Repeatable && mayBeGood(ctx, a, err):
		return leases.Taken{}, &leases.KeptError{Err: err, GiveBack: giveBack}
	}
	giveBack()
	return leases.Taken{}, err
}

// mayBeGood reports whether a failed attempt may have given a lease, and raised its fence.
func mayBeGood(ctx context.Context, a *attempt, err error) bool {
	unknown := a.doubt || errors.Is(err, fence.ErrUnknown) || errors.Is(err, leasing.ErrLost) || ctx.Err() != nil
	return unknown && !errors.Is(err, fence.ErrUndrained)
}

// take has PostgreSQL give the lease and raise its fence, grouped with others if no waiting is needed.
func (s *store) take(ctx context.Context, a *attempt) error {
	if a.way.waiter != "" {
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
func (s *store) takeGroup(ctx context.Context, all []*attempt) []groups.Settled {
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

func (s *store) takeOn(ctx context.Context, conn *pgx.Conn, all []*attempt, warned func(string) error, answers []groups.Settled) error {
	resources, owners, holders := make([]string, len(all)), make([]string, len(all)), make([]string, len(all))
	ttls, hashes, behind := make([]int64, len(all)), make([][]byte, len(all)), make([]bool, len(all))
	for i, a := range all {
		resources[i], owners[i], holders[i] = a.r.Resource, a.owner, a.r.Holder
		ttls[i], hashes[i], behind[i] = a.r.TTL.Microseconds(), a.r.SealHash, a.way.behind
	}
	rows, _ := conn.Query(ctx, sqlTakeAll, mode(conn), resources, owners, ttls, hashes, holders, behind)
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
			answers[n-1] = groups.Settled{Done: true, Err: fmt.Errorf("%s: the TTL of %v ended before it was acquired: %w", a.doing(), a.r.TTL, leasing.ErrLost)}
		case yes(held):
			answers[n-1] = groups.Settled{Done: true, Err: heldError(a.r.Resource, holder, left)}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for i, token := range given {
		if a := all[i]; token > 0 {
			a.token.Store(int64(token))
			s.cfg.Armed(a.r.Resource, token)
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
func (s *store) takeAlone(ctx context.Context, a *attempt) error {
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
	switch _, held := errors.AsType[*leasing.HeldError](err); {
	case err == nil, held, errors.Is(err, leasing.ErrLost):
		return err
	case a.doubt && !errors.Is(err, fence.ErrUnknown):
		return fmt.Errorf("%w: %w", fence.ErrUnknown, failure(ctx, a.doing(), err))
	}
	return failure(ctx, a.doing(), err)
}

func (s *store) takeAloneOn(ctx context.Context, conn *pgx.Conn, a *attempt) error {
	var taken bool
	var token, left *int64
	var holder *string
	var waiter *string
	if a.way.waiter != "" {
		waiter = &a.way.waiter
	}
	err := conn.QueryRow(ctx, sqlTake, mode(conn), a.r.Resource, a.owner, a.r.TTL.Microseconds(), a.r.SealHash, a.r.Holder, a.way.behind,
		waiter, keepPlace.Microseconds(), turnLimit.Microseconds()).Scan(&taken, &token, &holder, &left)
	if err != nil {
		return err
	}
	if !taken || token == nil {
		return heldError(a.r.Resource, holder, left)
	}
	a.token.Store(*token)
	s.cfg.Armed(a.r.Resource, a.given())
	var ours bool
	// Draining must begin after the commit that raised the fence.
	if err := conn.QueryRow(ctx, sqlDrain, mode(conn), a.r.Resource, *token, a.r.SealHash).Scan(&ours); err != nil {
		return err
	}
	if !ours { // the fence was raised further, for example by a revocation
		return fmt.Errorf("%s: the fence was raised above its token %d: %w", a.doing(), *token, leasing.ErrLost)
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
func (s *store) giveBack(a *attempt) {
	end := a.start.Add(a.r.TTL + backTimeout)
	pause := backPause
	for answers := 0; answers < backTries && !end.Passed(); {
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
		case <-s.env.Life.Late.Done(): // the lease expires
			return
		case <-time.After(pause):
		}
	}
}

// freeBack tries once, unless Close has ended that. It reports whether nothing is left to free, and whether PostgreSQL answered.
func (s *store) freeBack(ctx context.Context, a *attempt) (freed, answered bool) {
	ctx, cancel := context.WithTimeout(ctx, backTimeout)
	defer cancel()
	defer context.AfterFunc(s.env.Life.Late, cancel)()
	f := &freeing{ref: leasing.Ref{Resource: a.r.Resource, Owner: a.owner}}
	err := s.free(ctx, f)
	return err == nil && (f.freed || a.given() > 0), err == nil
}
