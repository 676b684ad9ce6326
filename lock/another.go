package lock

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/fence/clock"
)

// another is this process's view of an admission that another process began.
type another struct {
	nonce string
	since clock.Instant // this process first saw the nonce
}

// hasten shortens the quarantine of an admission that another process began and may have died before it shortened it.
// The nonce was written before this process first saw it, so the other nodes are asked a round's time after that.
// After an error the next look tries again.
func (seen *another) hasten(ctx context.Context, l *Locker, n *node) {
	nonce, whole, err := n.underWay(ctx)
	if err != nil || whole == 0 {
		return
	}
	if seen.nonce != nonce {
		*seen = another{nonce: nonce, since: l.clock.Now()}
	}
	if !seen.since.Add(l.askAfter()).Passed() {
		return
	}
	a := admission{nonce: nonce, quarantine: whole, begun: seen.since}
	if err := l.shorten(ctx, n, a); err != nil && ctx.Err() == nil {
		l.cfg.Logger.Warn("the quarantine that another process began could not be shortened yet", "node", n.name, "error", err)
	}
}

// again is the time to the next look at another's admission whose quarantine lasts left.
func (seen *another) again(l *Locker, left time.Duration) time.Duration {
	if ask := seen.since.Add(l.askAfter()).Left(); ask > 0 {
		left = min(left, ask)
	}
	return min(left, askEvery) + l.dice.jitter()
}

// underWay reads a node's current admission and the original length of its quarantine; 0: it has none, or a shortened
// one.
func (n *node) underWay(ctx context.Context) (nonce string, whole time.Duration, err error) {
	var pending, quarantine *redis.StringCmd
	_, err = n.client.TxPipelined(ctx, func(tx redis.Pipeliner) error {
		pending = tx.HGet(ctx, n.keys.h, "@pending")
		quarantine = tx.Get(ctx, n.keys.q)
		return nil
	})
	if err != nil { // also redis.Nil: one of them is missing
		return "", 0, err
	}
	text, found := strings.CutPrefix(quarantine.Val(), pending.Val()+":")
	ms, err := strconv.ParseInt(text, 10, 64)
	if err != nil || !found || ms <= 0 { // a shortened one has ":shortened:"
		return pending.Val(), 0, nil
	}
	return pending.Val(), time.Duration(ms) * time.Millisecond, nil
}
