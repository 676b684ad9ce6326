package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/robustness/history"
)

// Prober makes calls for the judge: whether every surface works again, whether every resource is free, and what the
// registers hold in the end. Only one goroutine may use it at a time.
type Prober struct{ p *process }

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
func (p *Prober) Close() error { return p.p.close() }

// ErrUnreadable reports that a register could not be read under a lease after all faults have ended.
var ErrUnreadable = errors.New("could not read")

const (
	probeTTL  = 3 * time.Second
	auditTime = 30 * time.Second // for one resource
)

// Turn acquires, reads, writes, reads again and releases with the surface. It repeats this until all succeeded or the
// limit has passed. The calls are recorded with the surface "probe SURFACE".
func (p *Prober) Turn(ctx context.Context, round int, surface, resource string, limit time.Time) error {
	return p.until(ctx, limit, func(ctx context.Context) error {
		w, l, err := p.lease(ctx, round, "probe ", surface, resource)
		if err != nil {
			return err
		}
		defer l.forget()
		if !w.read(ctx, l) {
			return errors.New("could not be read")
		}
		if op := w.writeOnce(ctx, l, &pause{w: w}, nil); op.Outcome != history.Done {
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

// Audit acquires the resource with the surface and reads the registers, by default its own, objects whole. It retries
// for 30 s. If it never succeeded and a register could not be read, the error is [ErrUnreadable], also if the last try
// failed otherwise. The calls are recorded with the surface "audit SURFACE".
func (p *Prober) Audit(ctx context.Context, round int, surface, resource string, registers ...string) error {
	unreadable := false
	err := p.until(ctx, time.Now().Add(auditTime), func(ctx context.Context) error {
		w, l, err := p.lease(ctx, round, "audit ", surface, resource)
		if err != nil {
			return err
		}
		defer l.forget()
		if len(registers) > 0 {
			l.surface.registers = func(fence.Grant) []string { return registers }
		}
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
func (p *Prober) lease(ctx context.Context, number int, what, name, resource string) (*worker, *lease, error) {
	known, ok := p.p.surfaces[name]
	if !ok {
		return nil, nil, fmt.Errorf("the prober has no surface %q", name)
	}
	s := *known
	s.name = what + name
	w := &worker{round: &round{process: p.p, number: number}, dice: newDice(p.p.cfg.Seed, uint64(number))}
	a := ask{resources: w.resourcesFor(&s, resource), ttl: probeTTL, try: true, whole: what == "audit "}
	l, op := w.acquire(ctx, &s, a, longCall)
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
