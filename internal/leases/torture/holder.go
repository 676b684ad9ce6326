package torture

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/leases"
)

// Client is what a process acquires leases with.
type Client struct {
	leasing.Source
	// Handle acquires a lease that is held by a handle in the process, and renewed so often by itself. If it is set, every
	// second lease has one.
	Handle func(ctx context.Context, wait leasing.Wait, r leasing.Request, renewals int) (Handle, error)
	First  func(ctx context.Context) error // prepares the servers, in a process of its own before all others; or see [Start]
	Beside func(ctx context.Context)       // runs beside the callers until ctx ends; nil: nothing
	After  func()                          // runs once the source is closed; nil: nothing
}

// Handle is a lease that knows in this process when it is over.
type Handle interface {
	leasing.HeldLease
	anyLease
	ReleaseAsync()
}

// anyLease is a lease with a handle, or one that its reference stands for.
type anyLease interface {
	Ref() leasing.Ref
	Deadline() clock.Instant // that its holder relies on
	Extend(ctx context.Context, ttl time.Duration) error
	Release(ctx context.Context) error
}

// byReference is a lease without a handle.
type byReference struct {
	leasing.Lease
	source leasing.Source
}

func (l *byReference) Deadline() clock.Instant { return l.Lease.Deadline }

// Extend leaves the holder with the earlier deadline if it may have been done.
func (l *byReference) Extend(ctx context.Context, ttl time.Duration) error {
	asked := l.Lease.Deadline.Now()
	deadline, err := l.source.Extend(ctx, l.Ref(), ttl)
	switch {
	case err == nil:
		l.Lease.Deadline = deadline
	case !errors.Is(err, leasing.ErrLost):
		l.Lease.Deadline = l.Lease.Deadline.Earlier(asked.Add(ttl))
	}
	return err
}

func (l *byReference) Release(ctx context.Context) error { return l.source.Release(ctx, l.Ref()) }

// part is what one process does, as JSON in its environment.
type part struct {
	Setup              json.RawMessage
	Addrs              []string
	Seed               uint64
	TTL, Lag           time.Duration
	Callers, Resources int
	Renamed            time.Duration
	Role               role
}

// role is what a process is for.
type role string

const (
	acquires role = ""
	first    role = "first" // it calls Client.First
	last     role = "last"  // it acquires each resource once, when all others have ended
)

// player plays a part.
type player struct {
	part
	Client
	second Client // of every second caller: one process may have several sources
	timeline
	report func(event)
}

// play does what the process is for. Callers acquire leases until ctx ends.
func (p *player) play(ctx context.Context) error {
	if p.Role != acquires {
		ctx = context.WithoutCancel(ctx)
	}
	if p.Role == first {
		return p.First(ctx)
	}
	var done, beside sync.WaitGroup
	inside, stop := context.WithCancel(ctx)
	if p.Beside != nil {
		beside.Go(func() { p.Beside(inside) })
	}
	if p.Role == last {
		p.report(event{Stuck: p.stuck(ctx)})
	} else {
		for i := range p.Callers {
			caller := *p
			if i%2 > 0 {
				caller.Client = p.second
			}
			done.Go(func() { caller.use(ctx, rand.New(rand.NewPCG(p.Seed, uint64(i)))) })
		}
	}
	done.Wait()
	stop()
	beside.Wait()
	return nil
}

// use acquires one lease after the other.
func (p *player) use(ctx context.Context, random *rand.Rand) {
	for ctx.Err() == nil {
		err := p.once(ctx, random)
		if err != nil && ctx.Err() == nil && !passing(err) {
			p.report(event{Strange: err.Error()})
			return
		}
		if err != nil {
			leases.Pause(ctx, up(random, p.TTL/30))
		}
	}
}

// passing reports whether the faults explain an error.
func passing(err error) bool {
	return leasing.Retryable(err) || errors.Is(err, leasing.ErrLost) || errors.Is(err, fence.ErrUnknown)
}

// up is a time below d.
func up(random *rand.Rand, d time.Duration) time.Duration {
	return time.Duration(random.Int64N(int64(max(d, 1))))
}

// resource is a resource's name now. Processes agree on it.
func (p *player) resource(i int) string {
	if p.Renamed == 0 {
		return fmt.Sprintf("r%d", i)
	}
	return fmt.Sprintf("r%d.%d", i, p.at(time.Now())/p.Renamed)
}

// once acquires one lease, and ends it in one of several ways.
func (p *player) once(ctx context.Context, random *rand.Rand) error {
	ttl := p.TTL/2 + up(random, p.TTL)
	h := Hold{Resource: p.resource(random.IntN(p.Resources)), Asked: p.at(time.Now())}
	patience := 10 * p.TTL
	if random.IntN(8) == 0 {
		patience = up(random, p.TTL/10) // anywhere during the acquisition
	}
	bounded, cancel := context.WithTimeout(ctx, patience)
	l, err := p.acquire(bounded, leasing.Request{Resource: h.Resource, TTL: ttl}, random)
	if err != nil && bounded.Err() != nil {
		err = leasing.ErrHeld // or what else would have come
	}
	if cancel(); err != nil {
		return err
	}
	h.From, h.To, h.Token = p.after(time.Now()), p.at(l.Deadline().Time()), l.Ref().Token
	if ctx.Err() == nil {
		err = p.have(ctx, l, &h, ttl, random)
	}
	p.report(event{Hold: &h})
	return err
}

func (p *player) acquire(ctx context.Context, r leasing.Request, random *rand.Rand) (anyLease, error) {
	wait := leasing.Wait(random.IntN(4) > 0)
	if p.Handle != nil && random.IntN(2) == 0 {
		renewals := 0
		if random.IntN(4) == 0 {
			renewals = 3
		}
		return p.Handle(ctx, wait, r, renewals)
	}
	lease, err := leasing.One(p.Acquire(ctx, wait, r))
	return &byReference{lease, p.Source}, err
}

// have holds a lease for a while, and ends it in one of several ways.
func (p *player) have(ctx context.Context, l anyLease, h *Hold, ttl time.Duration, random *rand.Rand) error {
	handle, _ := l.(Handle)
	for range random.IntN(4) {
		pause := up(random, ttl/4)
		if random.IntN(6) == 0 {
			pause = up(random, 2*ttl) // it stops renewing, and returns when the lease may have expired
		}
		leases.Pause(ctx, pause)
		if handle != nil && validTooLong(handle) {
			p.report(event{Late: 1})
		}
		if random.IntN(3) == 0 {
			continue
		}
		alive, err := p.extend(ctx, l, p.TTL/2+up(random, p.TTL))
		if h.To = p.at(l.Deadline().Time()); !alive {
			return err
		}
	}
	end := random.IntN(8)
	if end == 0 { // it vanishes; until then the lease may have renewed itself
		h.To = p.at(l.Deadline().Time())
		return nil
	}
	if end == 1 { // it releases late
		leases.Pause(ctx, l.Deadline().Left()+up(random, ttl/10))
	}
	h.To = min(p.at(l.Deadline().Time()), p.at(time.Now()))
	if handle != nil && end < 4 {
		handle.ReleaseAsync()
		return nil
	}
	err := l.Release(ctx)
	if err == nil && random.IntN(4) == 0 && p.keeps(ctx, l.Ref()) {
		p.report(event{Kept: 1})
	}
	return err
}

// extend renews a lease. Until the answer, the holder relies on the previous deadline.
func (p *player) extend(ctx context.Context, l anyLease, ttl time.Duration) (alive bool, err error) {
	asked, until := time.Now(), l.Deadline().Time()
	err = l.Extend(ctx, ttl)
	if now := time.Now(); errors.Is(err, leasing.ErrLost) && now.Before(until) && now.Before(asked.Add(ttl/2)) {
		p.report(event{Early: 1})
	}
	return err == nil || errors.Is(err, leasing.ErrUnavailable), err
}

// validTooLong reports whether a lease looks valid after its deadline, also if the process was stopped in between.
func validTooLong(l Handle) bool {
	deadline := l.Deadline().Time()
	if !time.Now().After(deadline) {
		return false
	}
	valid := l.Context().Err() == nil
	_, err := l.Grant()
	return (valid || err == nil) && l.Deadline().Time().Equal(deadline) // not extended
}

// keeps reports whether a released lease is still shown after the time that a server may lag behind.
func (p *player) keeps(ctx context.Context, ref leasing.Ref) bool {
	for until := time.Now().Add(p.Lag); ; leases.Pause(ctx, 10*time.Millisecond) {
		asked := time.Now()
		seen, err := leasing.One(p.Inspect(ctx, ref.Resource))
		switch {
		case err != nil || ctx.Err() != nil || !seen.Locked || seen.Owner != ref.Owner:
			return false
		case !asked.Before(until):
			return true
		}
	}
}

// stuck counts the resources that can't be acquired after the faults have ended.
func (p *player) stuck(ctx context.Context) (n int) {
	ctx, cancel := context.WithTimeout(ctx, inTheEnd)
	defer cancel()
	for i := range p.Resources {
		if err := p.free(ctx, p.resource(i)); err != nil {
			p.report(event{Strange: err.Error()})
			n++
		}
	}
	return n
}

// free waits until a resource can be acquired.
func (p *player) free(ctx context.Context, resource string) error {
	for ; ; leases.Pause(ctx, 100*time.Millisecond) {
		lease, err := leasing.One(p.Acquire(ctx, leasing.UntilDone, leasing.Request{Resource: resource, TTL: p.TTL}))
		switch {
		case err == nil:
			_ = p.Release(ctx, lease.Ref())
			return nil
		case errors.Is(err, leasing.ErrLost): // it was acquired, and its TTL ended on the way
			return nil
		case !leasing.Retryable(err) || ctx.Err() != nil:
			return err
		}
	}
}
