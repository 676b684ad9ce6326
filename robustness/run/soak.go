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
	// soakEach is the interval between the restarts of gateways.
	soakEach = time.Minute
	// readyWithin bounds the time until a restarted gateway is ready.
	readyWithin = 30 * time.Second
)

// soak lets the clients work, and restarts a gateway each minute, with a drain: all in turn except the last, which
// lives as long as the run, so that slow growth is noticed.
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

// within retries until is returns no error.
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

// Size is a size of one gateway process, sampled once a round.
type Size struct {
	Name    string // including its unit
	Samples []float64
}

func (s Size) String() string {
	return fmt.Sprintf("%-28s %8g %8g %8g  of %d", s.Name, s.Samples[0], s.Samples[len(s.Samples)-1], slices.Max(s.Samples), len(s.Samples))
}

// flat returns the sizes of gateways.
func flat(sizes map[string][]float64) (all []Size) {
	for _, name := range slices.Sorted(maps.Keys(sizes)) {
		if strings.HasPrefix(name, "gateway-") && len(sizes[name]) > 0 {
			all = append(all, Size{name, sizes[name]})
		}
	}
	return all
}
