package run

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fencegate/fencegate/robustness/client"
	"github.com/fencegate/fencegate/robustness/cluster"
	"github.com/fencegate/fencegate/robustness/history"
	"github.com/fencegate/fencegate/robustness/judge"
	"github.com/fencegate/fencegate/robustness/machine"
)

var (
	// ErrFound is every [FoundError].
	ErrFound = errors.New("the judge found something")
	// ErrUnchecked reports that the run could not check everything, also beside a [FoundError].
	ErrUnchecked = errors.New("the run could not check")
)

// FoundError reports what the judge found.
type FoundError struct{ Findings []judge.Finding }

// Safe reports that nothing unsafe was found: something took too long although the machine was fast enough, or grew.
func (e *FoundError) Safe() bool {
	return !slices.ContainsFunc(e.Findings, func(f judge.Finding) bool { return !f.Kind.Safe() })
}

func (e *FoundError) Error() string {
	var parts []string
	for _, kind := range kindsOf(e.Findings) {
		n := 0
		for _, f := range e.Findings {
			if string(f.Kind) == kind {
				n++
			}
		}
		parts = append(parts, fmt.Sprintf("%d %s", n, kind))
	}
	found := strings.Join(parts, ", ")
	if e.Safe() {
		return "slow: nothing unsafe; " + found + ", and the machine was fast enough"
	}
	return "a promise was broken: " + found
}

// Is makes every FoundError an ErrFound.
func (e *FoundError) Is(target error) bool { return target == ErrFound }

// Result is the result of a run.
type Result struct {
	Options  Options
	Rounds   int
	Lasted   time.Duration
	Work     time.Duration  // the part of Lasted with faults
	Faults   map[string]int // how often each was played
	Undone   map[string]int // how often each could not be done
	Findings []judge.Finding
	Counts   judge.Counts
	Caught   time.Duration // until enough was found
	Restarts int           // of gateways, by their supervisor
	Flat     []Size        // of a soak: the sizes measured each round
	Machine  history.Paces // what the machine did
}

// Kinds returns the kinds of the findings, each once.
func (r Result) Kinds() []string { return kindsOf(r.Findings) }

func kindsOf(findings []judge.Finding) []string {
	var kinds []string
	for _, f := range findings {
		if !slices.Contains(kinds, string(f.Kind)) {
			kinds = append(kinds, string(f.Kind))
		}
	}
	return kinds
}

// player is a running run.
type player struct {
	o        Options
	c        *cluster.Cluster
	dir      string // of the histories
	yard     *machine.Yardstick
	judge    judge.Judge
	operator *history.Writer
	probers  []*client.Prober // one for each gateway, and for the balancer
	readers  map[string]*history.Reader
	lastSeq  int64 // of the effects read
	sizes    map[string][]float64
	result   Result
	begun    time.Time
	soaked   int // number of restarts by the soak

	healedLate int // faults whose healing took long because the machine was slow
	readLate   int // questions of the auditor, likewise
}

// Run plays rounds until the time is over, there are findings, or ctx ends.
func Run(ctx context.Context, o Options) (result Result, err error) {
	if err := o.fill(); err != nil {
		return Result{}, err
	}
	p := &player{o: o, readers: map[string]*history.Reader{}, sizes: map[string][]float64{}, result: Result{Options: o, Faults: map[string]int{}, Undone: map[string]int{}}}
	p.sayf("seed %d; %s; %d gateways, %d clients of %d workers", o.Seed, o.mode(), o.Gateways, o.Clients, o.Workers)
	defer func() {
		if failed := p.close(); failed != nil {
			err = errors.Join(err, fmt.Errorf("%w: %w", ErrUnchecked, failed))
		}
	}()
	if err := p.open(ctx); err != nil {
		return p.result, err
	}
	p.begun = time.Now()
	for round := 1; round == 1 || time.Since(p.begun) < o.For; round++ {
		if err := p.round(ctx, round); err != nil {
			return p.result, fmt.Errorf("round %d: %w", round, err)
		}
		if len(p.result.Findings) > 0 && (o.Until == nil || o.Until(p.result.Kinds())) {
			p.result.Caught = time.Since(p.begun)
			break
		}
	}
	p.result.Lasted = time.Since(p.begun)
	p.result.Machine = p.yard.Paces()
	for _, g := range p.c.Gateways {
		p.result.Restarts += g.Starts() - 1
	}
	if p.o.Soak {
		p.result.Flat = flat(p.sizes)
	}
	if len(p.result.Findings) > 0 {
		return p.result, &FoundError{p.result.Findings}
	}
	return p.result, p.undone(ctx)
}

func (p *player) sayf(format string, args ...any) {
	fmt.Fprintf(p.o.Out, "%s %s\n", time.Now().Format("15:04:05"), fmt.Sprintf(format, args...))
}
