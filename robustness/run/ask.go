package run

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fencegate/fencegate/robustness/client"
	"github.com/fencegate/fencegate/robustness/cluster"
	"github.com/fencegate/fencegate/robustness/history"
	"github.com/fencegate/fencegate/robustness/judge"
)

// probed are the resources of a round's probes.
func (p *player) probed(round int) []string {
	var names []string
	for g := range p.probers {
		for i := range p.o.Surfaces {
			names = append(names, probeResource(round, g, i))
		}
	}
	return names
}

func probeResource(round, gateway, surface int) string {
	return fmt.Sprintf("robust/r%d-probe-%d-%d", round, gateway, surface)
}

// recovery is how long everything may take to work again. Time that the machine lost does not count.
const recovery = 30 * time.Second

// patiently tries until it succeeds, or until recovery has passed since a moment.
func (p *player) patiently(ctx context.Context, since int64, try func(limit time.Time) error) error {
	for left := recovery - time.Duration(history.Now()-since); ; {
		err := try(time.Now().Add(left))
		if err == nil || ctx.Err() != nil {
			return err
		}
		if left = p.yard.Left(ctx, since, recovery); left <= 0 {
			return err
		}
	}
}

// probe checks whether everything works again: every surface through one gateway and through the balancer, and three of
// them through each gateway.
func (p *player) probe(ctx context.Context, round int, healed int64) []judge.Finding {
	var all sync.WaitGroup
	var mu sync.Mutex
	var found []judge.Finding
	for g, prober := range p.probers {
		way := fmt.Sprint("gateway ", g+1)
		if g == p.o.Gateways {
			way = "the balancer"
		}
		all.Go(func() {
			for i, surface := range p.o.Surfaces {
				if (i+round)%p.o.Gateways != g && i >= 3 && g < p.o.Gateways {
					continue
				}
				err := p.patiently(ctx, healed, func(limit time.Time) error {
					return prober.Turn(ctx, round, surface, probeResource(round, g, i), limit)
				})
				if err != nil {
					mu.Lock()
					found = append(found, judge.Finding{
						Kind: judge.NotRecovered, Where: surface + " through " + way,
						Text: fmt.Sprintf("30 s after the last fault of round %d: %s %v", round, probeResource(round, g, i), err),
					})
					mu.Unlock()
				}
			}
		})
	}
	all.Wait()
	return found
}

// question is what the auditor asks for: a resource, and the registers that it reads; nil: the surface's own.
type question struct {
	surface, resource string
	registers         []string
}

// once is the surface whose resources are others, with a register for each three leases.
const once = "s3-once"

// questions are those of each resource of a round.
func (p *player) questions(ctx context.Context, resources []string) (all [][]question, err error) {
	surface := "publish"
	if !slices.Contains(p.o.Surfaces, surface) {
		surface = p.o.Surfaces[max(0, slices.IndexFunc(p.o.Surfaces, func(name string) bool { return name != once }))]
	}
	if surface != once {
		for _, resource := range resources {
			all = append(all, []question{{surface, resource, nil}})
		}
	}
	if !slices.Contains(p.o.Surfaces, once) {
		return all, nil
	}
	effects, err := p.c.Effects(ctx, max(0, p.lastSeq-again))
	for _, resource := range resources {
		_, name, _ := strings.Cut(resource, "/")
		var registers []string
		for _, e := range effects {
			if e.Resource == cluster.OnceBucket+"/"+name {
				registers = append(registers, e.Register)
			}
		}
		slices.Sort(registers)
		asked := []question{{once, resource, nil}}
		for register := range slices.Chunk(slices.Compact(registers), 1) { // the lease ends soon
			asked = append(asked, question{once, resource, register})
		}
		all = append(all, asked)
	}
	return all, err
}

// audit acquires every resource once more, and reads its final values. It reports what it did not get or could not read,
// once for each resource.
func (p *player) audit(ctx context.Context, round int, questions [][]question) []judge.Finding {
	var all sync.WaitGroup
	var mu sync.Mutex
	var found []judge.Finding
	for g, prober := range p.probers {
		all.Go(func() {
			for i := g; i < len(questions); i += len(p.probers) {
				late, finding := p.auditOne(ctx, round, prober, questions[i])
				mu.Lock()
				p.readLate += late
				found = append(found, finding...)
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return found
}

// auditOne asks the questions about a resource until one brings a finding. late counts what was read only at last.
func (p *player) auditOne(ctx context.Context, round int, prober *client.Prober, questions []question) (late int, found []judge.Finding) {
	for _, q := range questions {
		unread, err := p.ask(ctx, round, prober, q)
		switch {
		case ctx.Err() != nil:
			return late, nil
		case err != nil:
			return late, []judge.Finding{audited(q.resource, cmp.Or(unread, err))} // the last try may have failed before it read
		case unread != nil:
			late++
		}
	}
	return late, nil
}

// ask asks for 30 s, and longer if the machine lost some of them: until then what was not read is slow. An answer whose
// bytes are wrong or missing is judged in any case. It returns what kept it from reading, too, although it read at last.
func (p *player) ask(ctx context.Context, round int, prober *client.Prober, q question) (unread, err error) {
	err = p.patiently(ctx, history.Now(), func(time.Time) error {
		err := prober.Audit(ctx, round, q.surface, q.resource, q.registers...) // for 30 s
		if errors.Is(err, client.ErrUnreadable) {
			unread = err
		}
		return err
	})
	return unread, err
}

// audited is the finding of an audit that failed.
func audited(resource string, err error) judge.Finding {
	kind := judge.NotFree
	if errors.Is(err, client.ErrUnreadable) {
		kind = judge.Unreadable
	}
	return judge.Finding{Kind: kind, Where: resource, Text: fmt.Sprintf("the auditor: %v", err)}
}
