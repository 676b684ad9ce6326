package run

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/fencegate/fencegate/robustness/client"
	"github.com/fencegate/fencegate/robustness/history"
	"github.com/fencegate/fencegate/robustness/judge"
)

// probed are the resources of a round's probes.
func (p *player) probed(round int) []string {
	var names []string
	for g := range p.o.Gateways {
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

// probe checks whether everything works again: every surface through one gateway, and three of them through each.
func (p *player) probe(ctx context.Context, round int, healed int64) []judge.Finding {
	var all sync.WaitGroup
	var mu sync.Mutex
	var found []judge.Finding
	for g, prober := range p.probers {
		all.Go(func() {
			for i, surface := range p.o.Surfaces {
				if (i+round)%p.o.Gateways != g && i >= 3 {
					continue
				}
				err := p.patiently(ctx, healed, func(limit time.Time) error {
					return prober.Turn(ctx, round, surface, probeResource(round, g, i), limit)
				})
				if err != nil {
					mu.Lock()
					found = append(found, judge.Finding{
						Kind: judge.NotRecovered, Where: fmt.Sprintf("%s through gateway %d", surface, g+1),
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

// audit acquires every resource once more, and reads its final values. It reports what it did not get or could not read.
func (p *player) audit(ctx context.Context, round int, resources []string) []judge.Finding {
	surface := "publish"
	if !slices.Contains(p.o.Surfaces, surface) {
		surface = p.o.Surfaces[0]
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	var found []judge.Finding
	for g, prober := range p.probers {
		all.Go(func() {
			for i := g; i < len(resources); i += len(p.probers) {
				var unread error
				err := p.patiently(ctx, history.Now(), func(time.Time) error {
					err := prober.Audit(ctx, round, surface, resources[i]) // for 30 s
					if errors.Is(err, client.ErrUnreadable) {
						unread = err
					}
					return err
				})
				if err != nil && unread != nil { // the last try may have failed before it read
					err = unread
				}
				if err == nil || ctx.Err() != nil {
					continue
				}
				mu.Lock()
				found = append(found, audited(resources[i], err))
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return found
}

// audited is the finding of an audit that failed.
func audited(resource string, err error) judge.Finding {
	kind := judge.NotFree
	if errors.Is(err, client.ErrUnreadable) {
		kind = judge.Unreadable
	}
	return judge.Finding{Kind: kind, Where: resource, Text: fmt.Sprintf("the auditor: %v", err)}
}
