package leases

import (
	"context"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/activity"
	"github.com/fencegate/fencegate/wire"
)

// Leases expire without a request. The gateway polls to learn of it.
const (
	expiryEvery   = time.Second
	expiryTimeout = 2 * time.Second
)

// Expiry reports the leases of this gateway that expired.
type Expiry struct {
	Ledger *Ledger
	Source leasing.Source
	Clock  *clock.Clock
	// Current returns the tokens of grants that have not ended.
	Current func(ctx context.Context, resources []string) (map[string]fence.Token, error)
	Tell    func(activity.Event)
}

// Run reports until ctx ends.
func (e Expiry) Run(ctx context.Context) error {
	tick := time.NewTicker(expiryEvery)
	defer tick.Stop()
	var unsure []leasing.Ref // expired here, not looked up yet
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		unsure = append(unsure, e.Ledger.over()...)
		if len(unsure) == 0 {
			continue
		}
		unsure = unsure[:min(len(unsure), maxRanOut)]
		look, cancel := context.WithTimeout(ctx, expiryTimeout)
		if e.report(look, unsure) == nil {
			unsure = nil
		}
		cancel()
	}
}

// report reports the leases that expired here. Another gateway may have extended or released one, so the lock and
// the fence decide.
func (e Expiry) report(ctx context.Context, refs []leasing.Ref) error {
	names := make([]string, len(refs))
	for i, ref := range refs {
		names[i] = ref.Resource
	}
	asked := e.Clock.Now()
	states, err := e.Source.Inspect(ctx, names...)
	if err != nil {
		return err
	}
	current, err := e.Current(ctx, names)
	if err != nil {
		return err
	}
	for i, ref := range refs {
		switch state := states[i]; {
		case state.Locked && state.Owner == ref.Owner && state.TTL >= 0:
			e.Ledger.Note(ref, asked.Add(max(state.TTL, time.Millisecond)))
		case current[ref.Resource] == ref.Token:
			e.Tell(activity.Event{Kind: wire.EventExpired, Resource: ref.Resource, Presented: ref.Token})
		default:
			e.Ledger.ended(ref)
		}
	}
	return nil
}
