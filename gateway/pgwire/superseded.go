package pgwire

import (
	"context"
	"log/slog"
	"time"

	"github.com/fencegate/fencegate/fence"
)

// fences ends the sessions whose grants are superseded.
type fences struct {
	recorded       func(ctx context.Context, resources []string) (map[string]fence.Token, error) // as in [Config]; nil: nothing is asked
	timeout, every time.Duration
	sessions       *registry
	log            *slog.Logger
}

// superseded ends the sessions that carry older grants than these, in one pass.
func (f *fences) superseded(recorded map[string]fence.Token) {
	f.sessions.each(func(ss *session) { ss.endIfSuperseded(recorded) })
}

// watch asks the fence for the grants that sessions carry, until ctx ends: other gateways arm, too.
func (f *fences) watch(ctx context.Context) {
	tick := time.NewTicker(f.every)
	defer tick.Stop()
	for failing := false; ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		err := f.look(ctx)
		if err != nil && !failing && ctx.Err() == nil { // once per outage
			f.log.Warn("failed to find sessions whose grants are superseded; the fence refuses their writes", "error", err)
		}
		failing = err != nil
	}
}

// look is [Server.Look].
func (f *fences) look(ctx context.Context, only ...string) error {
	if f.recorded == nil {
		return nil
	}
	wanted := make(map[string]bool, len(only)) // false: seen already
	for _, resource := range only {
		wanted[resource] = true
	}
	var resources []string
	f.sessions.each(func(ss *session) {
		for _, resource := range ss.resources() {
			if want, known := wanted[resource]; want || !known && len(only) == 0 {
				wanted[resource] = false
				resources = append(resources, resource)
			}
		}
	})
	if len(resources) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	recorded, err := f.recorded(ctx, resources)
	if err != nil {
		return err
	}
	f.superseded(recorded)
	return nil
}
