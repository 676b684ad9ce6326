package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/fencegate/fencegate/robustness/history"
)

// Run runs a client process: it reads its Config and Orders from in, and answers each Order with a Report on out. When
// in or ctx ends, it finishes the running calls and returns.
func Run(ctx context.Context, in io.Reader, out io.Writer) (err error) {
	read := json.NewDecoder(in)
	var cfg Config
	if err := read.Decode(&cfg); err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	p, err := start(cfg, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	orders, failed := make(chan Order), make(chan error, 1)
	go func() { // ends with in, or with ctx at the next order
		for {
			var order Order
			if err := read.Decode(&order); err != nil {
				failed <- err
				return
			}
			select {
			case orders <- order:
			case <-ctx.Done():
				return
			}
		}
	}()
	write := json.NewEncoder(out)
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			if errors.Is(err, io.EOF) {
				return nil
			}
			return fmt.Errorf("order: %w", err)
		case order := <-orders:
			if err := write.Encode(p.obey(ctx, order)); err != nil {
				return err
			}
		}
	}
}

// process is the state that the workers of a client share.
type process struct {
	cfg      Config
	env      *env
	history  *history.Writer
	surfaces map[string]surface
	sequence atomic.Int64 // of IDs
	round    *round       // the current one; nil: at rest

	mu     sync.Mutex
	calls  int
	counts map[string]int
	tokens map[string]int64 // this client's leases: ID of the acquisition → token
}

// start starts a process. Given surfaces replace those of the Config.
func start(cfg Config, given map[string]surface) (p *process, err error) {
	p = &process{cfg: cfg, counts: map[string]int{}, tokens: map[string]int64{}, surfaces: map[string]surface{}}
	made := p // a return of nil replaces p
	defer func() {
		if err != nil {
			err = errors.Join(err, made.close())
		}
	}()
	// A client that was killed continues after its last ID.
	before, err := (&history.Reader{Path: cfg.History}).Next()
	if err != nil {
		return nil, err
	}
	p.sequence.Store(int64(len(before)))
	if p.history, err = history.Append(cfg.History); err != nil {
		return nil, err
	}
	if p.env, err = newEnv(cfg, uint64(cfg.Life)<<32+uint64(len(before))); err != nil {
		return nil, err
	}
	for name, s := range given {
		p.surfaces[name], p.cfg.Surfaces = s, append(p.cfg.Surfaces, name)
	}
	for _, name := range cfg.Surfaces {
		maker, ok := makers[name]
		if !ok {
			return nil, fmt.Errorf("no surface is called %q", name)
		}
		if p.surfaces[name], err = maker(p.env); err != nil {
			delete(p.surfaces, name)
			return nil, fmt.Errorf("surface %s: %w", name, err)
		}
	}
	if len(p.surfaces) == 0 || cfg.Workers < 1 || cfg.MaxTTL < shortestTTL {
		return nil, fmt.Errorf("a client needs a surface, a worker and leases of %v at least", shortestTTL)
	}
	return p, nil
}

func (p *process) close() (err error) {
	p.rest()
	for _, s := range p.surfaces {
		s.close()
	}
	if p.env != nil {
		p.env.close()
	}
	if p.history != nil {
		err = p.history.Close()
	}
	return err
}

func (p *process) obey(ctx context.Context, order Order) Report {
	report := Report{Done: order.Do}
	switch order.Do {
	case Work:
		p.rest()
		if len(order.Resources) == 0 {
			report.Error = "no resources to work on"
			break
		}
		p.round = p.begin(ctx, order)
	case Rest:
		p.rest()
		p.env.close() // idle connections would count as goroutines
	default:
		report.Error = fmt.Sprintf("no order is called %q", order.Do)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	report.Calls, report.Counts, report.Goroutines = p.calls, maps.Clone(p.counts), runtime.NumGoroutine()
	return report
}

func (p *process) rest() {
	if p.round == nil {
		return
	}
	close(p.round.stop)
	p.round.all.Wait()
	p.round = nil
	p.mu.Lock()
	clear(p.tokens)
	p.mu.Unlock()
}
