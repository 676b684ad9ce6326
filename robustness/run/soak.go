package run

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

const (
	// soakRound is short enough for four samples of a gateway that is restarted every other minute.
	soakRound = 20 * time.Second
	// soakEach is after how long the next gateway is restarted.
	soakEach = time.Minute
	// readyWithin is how long a restarted gateway has.
	readyWithin = 30 * time.Second
)

// soak lets the clients work, and restarts a gateway once a minute, draining: all but the last in turn, which lives as long
// as the run, so that what grows slowly is seen.
func (p *player) soak(ctx context.Context, s *scene) error {
	over := time.NewTimer(p.o.Round)
	defer over.Stop()
	if due := int(time.Since(p.begun) / soakEach); due > p.soaked {
		g := p.c.Gateways[p.soaked%(len(p.c.Gateways)-1)]
		p.soaked = due
		p.sayf("round %d: %s is restarted", s.number, g.Name)
		if err := g.Stop(ctx); err != nil {
			return err
		}
		ready := func() error { return g.Ready(ctx) }
		if err := within(ctx, readyWithin, ready); err != nil {
			return fmt.Errorf("%s is not ready again: %w", g.Name, err)
		}
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-over.C:
		return nil
	}
}

// within asks until it is so.
func within(ctx context.Context, d time.Duration, is func() error) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(d); ; {
		err := is()
		if err == nil || time.Now().After(end) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// Size is what was measured of one process of a gateway, once a round.
type Size struct {
	Name    string // with its unit
	Samples []float64
}

func (s Size) String() string {
	return fmt.Sprintf("%-28s %8g %8g %8g  of %d", s.Name, s.Samples[0], s.Samples[len(s.Samples)-1], slices.Max(s.Samples), len(s.Samples))
}

// flat are the sizes of gateways.
func flat(sizes map[string][]float64) (all []Size) {
	for _, name := range slices.Sorted(maps.Keys(sizes)) {
		if strings.HasPrefix(name, "gateway-") && len(sizes[name]) > 0 {
			all = append(all, Size{name, sizes[name]})
		}
	}
	return all
}
