package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencegate/fencegate/robustness/history"
)

// Prober makes calls for the judge: whether every surface works again, whether every resource is free, and what the
// registers hold in the end. Only one goroutine may use it at a time.
type Prober struct {
	p *process
}

// NewProber returns a prober. Its Config has the surfaces that it may use, and one worker.
func NewProber(cfg Config) (*Prober, error) {
	cfg.Workers = 1
	p, err := start(cfg, nil)
	if err != nil {
		return nil, err
	}
	return &Prober{p}, nil
}

// Close frees its resources.
func (p *Prober) Close() error {
	for _, name := range p.p.cfg.Surfaces { // only these exist
		delete(p.p.surfaces, "probe "+name)
		delete(p.p.surfaces, "audit "+name)
	}
	return p.p.close()
}

// ErrUnreadable reports that a register could not be read under a lease after all faults have ended.
var ErrUnreadable = errors.New("could not read")

// probeTTL is the TTL of the prober's leases.
const probeTTL = 3 * time.Second

// Turn acquires, reads, writes, reads again and releases with the surface. It repeats this until all succeeded or the
// limit has passed. The calls are recorded with the surface "probe SURFACE".
func (p *Prober) Turn(ctx context.Context, round int, surface, resource string, limit time.Time) error {
	return p.until(ctx, limit, func(ctx context.Context) error {
		w, l, err := p.lease(ctx, round, "probe ", surface, ask{resource: resource})
		if err != nil {
			return err
		}
		defer l.forget()
		if !w.read(ctx, l) {
			return errors.New("could not be read")
		}
		if op := w.put1(ctx, l, &pause{w: w}); op.Outcome != history.Done {
			return fmt.Errorf("was not written: %s: %s", op.Outcome, op.Error)
		}
		if l.known = nil; !w.read(ctx, l) {
			return errors.New("could not be read again")
		}
		if !w.release(ctx, l) {
			return errors.New("was not released")
		}
		return nil
	})
}

// auditTime is how long one resource is tried by an audit.
const auditTime = 30 * time.Second

// Audit acquires the resource with the surface and reads its registers, objects whole. It retries for 30 s. If it never
// succeeded and a register could not be read, the error is [ErrUnreadable], also if the last try failed otherwise. The
// calls are recorded with the surface "audit SURFACE".
func (p *Prober) Audit(ctx context.Context, round int, surface, resource string) error {
	unreadable := false
	err := p.until(ctx, time.Now().Add(auditTime), func(ctx context.Context) error {
		w, l, err := p.lease(ctx, round, "audit ", surface, ask{resource: resource, whole: true})
		if err != nil {
			return err
		}
		defer l.forget()
		read := w.read(ctx, l)
		w.release(ctx, l) // so that the next try is not refused; a later round does not use the resource
		if !read {
			unreadable = true
			return fmt.Errorf("%w: %s", ErrUnreadable, resource)
		}
		return nil
	})
	if err != nil && unreadable && !errors.Is(err, ErrUnreadable) {
		return fmt.Errorf("%w: %s; at last: %w", ErrUnreadable, resource, err)
	}
	return err
}

// lease acquires a resource once.
func (p *Prober) lease(ctx context.Context, number int, what, surface string, a ask) (*worker, *lease, error) {
	made, ok := p.p.surfaces[surface]
	if !ok {
		return nil, nil, fmt.Errorf("the prober has no surface %q", surface)
	}
	name := what + surface
	p.p.surfaces[name] = made
	w := &worker{round: &round{process: p.p, number: number}, dice: newDice(p.p.cfg.Seed, uint64(number))}
	l := &lease{surface: name, resource: a.resource, ttl: probeTTL}
	op := history.Op{Surface: name, Action: history.Acquire, Resource: a.resource}
	op = w.call(ctx, op, longCall, func(ctx context.Context, op *history.Op) (err error) {
		a.id, a.ttl, a.try = op.ID, probeTTL, true
		l.holding, err = made.acquire(ctx, a)
		if err == nil {
			op.Token, op.Until = l.token(), until(l.deadline())
		}
		return err
	})
	if op.Outcome != history.Done {
		return nil, nil, fmt.Errorf("was not acquired: %s: %s", op.Outcome, op.Error)
	}
	return w, l, nil
}

// until tries until it succeeds or the limit has passed; then the last error is returned.
func (p *Prober) until(ctx context.Context, limit time.Time, try func(context.Context) error) error {
	pace := time.NewTicker(250 * time.Millisecond)
	defer pace.Stop()
	for {
		err := try(ctx)
		if err == nil || time.Now().After(limit) || ctx.Err() != nil {
			return err
		}
		<-pace.C
	}
}
