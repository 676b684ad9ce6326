package run

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/fencegate/fencegate/robustness/client"
	"github.com/fencegate/fencegate/robustness/cluster"
	"github.com/fencegate/fencegate/robustness/fault"
	"github.com/fencegate/fencegate/robustness/history"
	"github.com/fencegate/fencegate/robustness/judge"
)

// scene is one round.
type scene struct {
	number          int
	resources       []string
	plan            []fault.Event
	played          fault.Result
	healed, resting int64
	found           []judge.Finding
}

// round is one round: work under faults, recovery, rest, audit, judgement.
func (p *player) round(ctx context.Context, number int) error {
	s := &scene{number: number, resources: p.resources(number)}
	for _, step := range []func(context.Context, *scene) error{p.prepare, p.work, p.recover, p.judgement} {
		if err := step(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// resources are those that the clients of a round work on.
func (p *player) resources(round int) (names []string) {
	for i := range p.o.Resources {
		names = append(names, fmt.Sprintf("robust/r%d-%d", round, i))
	}
	return names
}

// prepare creates the rows and the plan.
func (p *player) prepare(ctx context.Context, s *scene) (err error) {
	if err := p.c.Tidy(ctx); err != nil {
		return err
	}
	if err := p.c.Setup(ctx, slices.Concat(s.resources, p.probed(s.number))); err != nil {
		return err
	}
	if p.o.Soak {
		return nil
	}
	s.plan, err = fault.Plan(fault.Wish{
		Seed: p.o.Seed, Round: s.number, Length: p.o.Round, Only: p.o.Faults, Async: p.o.Async, Lacks: fault.Lacks(p.c),
	})
	return err
}

// work lets the clients work while the plan is played, and heals everything.
func (p *player) work(ctx context.Context, s *scene) error {
	if err := p.order(ctx, client.Order{Do: client.Work, Round: s.number, Resources: s.resources}); err != nil {
		return err
	}
	began := time.Now()
	if p.o.Soak {
		if err := p.soak(ctx, s); err != nil {
			return err
		}
	} else {
		s.played = p.play(ctx, s.number, s.plan)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err := p.c.Heal(ctx); err != nil {
		return err
	}
	p.result.Work += time.Since(began)
	s.healed = history.Now()
	p.note(s.played)
	return nil
}

func (p *player) play(ctx context.Context, round int, plan []fault.Event) fault.Result {
	return fault.Play(ctx, plan, fault.On(p.c), fault.Scene{
		Round: round, Resources: p.resources(round), Operator: p.operator, Log: p.o.Out,
	})
}

// recover checks that everything works again while the clients continue, lets them rest, and audits every register.
func (p *player) recover(ctx context.Context, s *scene) error {
	s.found = p.probe(ctx, s.number, s.healed)
	if err := p.rest(ctx, s); err != nil {
		return err
	}
	s.resting = history.Now()
	questions, err := p.questions(ctx, s.resources)
	s.found = append(s.found, p.audit(ctx, s.number, questions)...)
	return err
}

// judgement collects the findings.
func (p *player) judgement(ctx context.Context, s *scene) error {
	report, err := p.examine(ctx, s)
	if err != nil {
		return err
	}
	p.result.Rounds = s.number
	faulty, err := p.c.Faulty()
	if err != nil {
		return err
	}
	for _, text := range faulty {
		s.found = append(s.found, judge.Finding{Kind: judge.Broken, Where: "cluster", Text: text})
	}
	for _, found := range s.played.Found {
		if finding, ok := p.played(found); ok {
			s.found = append(s.found, finding)
		}
	}
	report.Counts.Slow[judge.NotRecovered] += p.healedLate + p.readLate
	report.Findings = append(s.found, report.Findings...)
	p.result.Findings = append(p.result.Findings, report.Findings...)
	p.result.Counts = report.Counts
	p.sayf("round %d: %s; %d faults; %d findings", s.number, total(report.Counts), len(s.plan), len(report.Findings))
	if len(report.Findings) > 0 {
		return p.keep(s.number, s.plan, report)
	}
	return nil
}

// played is the finding of a fault: damage, or a part that did not recover, unless the machine gave it less than its time.
func (p *player) played(e *fault.Error) (judge.Finding, bool) {
	kind := judge.Broken
	if !errors.Is(e, fault.ErrWrong) {
		kind = judge.NotRecovered
		bound := int64(e.Event.For + recovery)
		if e.Span.To >= e.Span.From+bound && e.Span.To < p.yard.Paces().After(e.Span.From, bound) {
			p.healedLate++
			return judge.Finding{}, false
		}
	}
	return judge.Finding{Kind: kind, Where: "cluster", Text: e.Error()}, true
}

// answerWithin bounds the wait for a client's answer to an order.
const answerWithin = 90 * time.Second

// order sends the order to every client concurrently.
func (p *player) order(ctx context.Context, order client.Order) error {
	return p.each(func(c *cluster.Client) error {
		_, err := c.Order(ctx, order, answerWithin)
		return err
	})
}

// rest lets every client finish its calls. A client that does not has a call that hangs: it is started again, and the
// judge finds the calls without an answer.
func (p *player) rest(ctx context.Context, s *scene) error {
	since, order := history.Now(), client.Order{Do: client.Rest}
	var mu sync.Mutex
	return p.each(func(c *cluster.Client) error {
		report, err := c.Order(ctx, order, answerWithin)
		for errors.Is(err, cluster.ErrNoAnswer) {
			left := p.yard.Left(ctx, since, answerWithin)
			if left <= 0 {
				break
			}
			report, err = c.Order(ctx, order, left)
		}
		mu.Lock()
		defer mu.Unlock()
		switch {
		case errors.Is(err, cluster.ErrNoAnswer):
			s.found = append(s.found, judge.Finding{Kind: judge.Late, Where: c.Name, Text: fmt.Sprintf("a call hangs: %v", err)})
			return c.Restart(ctx, order)
		case err == nil:
			p.sample(fmt.Sprintf("%s#%d goroutines", c.Name, len(c.Histories())), float64(report.Goroutines))
		}
		return err
	})
}

// each runs do for every client concurrently.
func (p *player) each(do func(*cluster.Client) error) error {
	var all sync.WaitGroup
	clients := p.c.Clients()
	errs := make([]error, len(clients))
	for i, c := range clients {
		all.Go(func() { errs[i] = do(c) })
	}
	all.Wait()
	return errors.Join(errs...)
}

func (p *player) sample(name string, value float64) { p.sizes[name] = append(p.sizes[name], value) }

func (p *player) note(played fault.Result) {
	for name, n := range played.Counts {
		p.result.Faults[name] += n
	}
	for _, e := range played.Undone {
		p.result.Undone[e.Event.Fault]++
	}
}

// undone plays each fault that could never be done once more, alone on the healed cluster, where nothing is in its way.
// What can't be done there either, such as a command that the product no longer has, was never tested.
func (p *player) undone(ctx context.Context) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(p.result.Undone)) {
		if p.result.Faults[name] > 0 {
			continue
		}
		err := p.patiently(ctx, history.Now(), func(time.Time) (failed error) {
			played := p.play(ctx, p.result.Rounds, []fault.Event{{Fault: name, For: time.Second}})
			for _, e := range slices.Concat(played.Undone, played.Found) {
				failed = errors.Join(failed, e)
			}
			return failed
		})
		if err != nil {
			errs = append(errs, fmt.Errorf("%w: %s was never done: %w", ErrUnchecked, name, err))
		}
	}
	return errors.Join(errs...)
}
