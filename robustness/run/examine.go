package run

import (
	"context"
	"fmt"
	"time"

	"github.com/fencegate/fencegate/robustness/fault"
	"github.com/fencegate/fencegate/robustness/history"
	"github.com/fencegate/fencegate/robustness/judge"
)

// again is how many of the last effects are read again each round.
const again = 20000

// examine gives the judge the new evidence: first the histories, then the effects.
func (p *player) examine(ctx context.Context, s *scene) (judge.Report, error) {
	evidence := judge.Evidence{
		Healed: map[int]int64{s.number: s.healed}, Resting: map[int]int64{}, Async: p.o.Async, Majority: len(p.c.Nodes) > 1, Exclusion: p.excludes(s.played), Sizes: p.sizes, Budget: 3 * time.Second,
		Slack: map[string]float64{"fds": 64, "goroutines": 64, "threads": 16, "kB": 64 << 10, "keys": 2000, "files": 400, "sessions": 16, "locks": 16},
	}
	var err error
	if evidence.Ops, err = p.newOps(); err != nil {
		return judge.Report{}, err
	}
	for n := 1; n <= p.o.Clients; n++ {
		evidence.Resting[n] = s.resting
	}
	happened(&evidence, s.played)
	// An effect may commit after one with a higher seq, so the last ones are read again.
	effects, err := p.c.Effects(ctx, max(0, p.lastSeq-again))
	if err != nil {
		return judge.Report{}, fmt.Errorf("effects: %w", err)
	}
	for _, e := range effects {
		p.lastSeq = max(p.lastSeq, e.Seq)
	}
	evidence.Effects = effects
	sizes, err := p.c.Sizes(ctx)
	if err != nil {
		return judge.Report{}, fmt.Errorf("sizes: %w", err)
	}
	for name, value := range sizes {
		p.sample(name, value)
	}
	evidence.Paces, evidence.WallAhead = p.yard.Paces(), p.yard.Ahead()
	evidence.Now = history.Now()
	return p.judge.Add(evidence), nil
}

// excludes reports that locks guarantee one holder in the round: no node's clock was set, and no failover ended leases of
// PostgreSQL that their holders still believe in.
func (p *player) excludes(played fault.Result) bool {
	return played.Counts["redis-clock"] == 0 && (!p.o.PostgresLeases || len(played.Switches) == 0)
}

// newOps returns the calls that were added to the histories since the last round.
func (p *player) newOps() (ops []history.Op, err error) {
	for _, c := range p.c.Clients() {
		for _, path := range c.Histories() {
			if p.readers[path] == nil {
				p.read(path)
			}
		}
	}
	for _, r := range p.readers {
		more, err := r.Next()
		if err != nil {
			return nil, err
		}
		ops = append(ops, more...)
	}
	return ops, nil
}

// happened adds the results of the faults.
func happened(evidence *judge.Evidence, played fault.Result) {
	for _, s := range played.Spans {
		switch {
		case s.Client == fault.NoClient:
			evidence.Outages = append(evidence.Outages, s)
		case s.What == "client-kill":
			s.What = judge.Killed
			fallthrough
		default:
			evidence.Stops = append(evidence.Stops, s)
		}
	}
	for _, s := range played.Switches {
		evidence.Lost = append(evidence.Lost, s.Loss)
		if s.Returned.To > 0 {
			evidence.Returned = append(evidence.Returned, s.Returned)
		}
	}
}
