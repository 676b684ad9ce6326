package admission

import (
	"context"
	"time"

	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/lock/internal/node"
)

// another is this process's view of an admission that another process began.
type another struct {
	nonce string
	since clock.Instant // this process first saw the nonce
}

// hasten shortens the quarantine of an admission that another process began and may have died before it shortened it.
// The nonce was written before this process first saw it, so the other nodes are asked a round's time after that.
// After an error the next look tries again.
func (seen *another) hasten(ctx context.Context, g *Group, n *node.Node) {
	nonce, whole, err := n.UnderWay(ctx)
	if err != nil || whole == 0 {
		return
	}
	if seen.nonce != nonce {
		*seen = another{nonce: nonce, since: g.cfg.Clock.Now()}
	}
	if !seen.since.Add(g.AskAfter()).Passed() {
		return
	}
	a := Admission{Nonce: nonce, quarantine: whole, Begun: seen.since}
	if err := g.shorten(ctx, n, a); err != nil && ctx.Err() == nil {
		g.cfg.Logger.Warn("the quarantine that another process began could not be shortened yet", "node", n.Name, "error", err)
	}
}

// again is the time to the next look at another's admission whose quarantine lasts left.
func (seen *another) again(g *Group, left time.Duration) time.Duration {
	if ask := seen.since.Add(g.AskAfter()).Left(); ask > 0 {
		left = min(left, ask)
	}
	return min(left, askEvery) + g.cfg.Dice.jitter()
}
