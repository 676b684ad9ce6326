package gateway

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/fencegate/fencegate/internal/pgtext"
	"github.com/fencegate/fencegate/lock"
)

// remindEvery is how often the log repeats why no leases can be granted yet.
const remindEvery = time.Minute

// admitNodes learns the key prefix and admits the Redis nodes, where either is configured, and retries until ctx ends.
// While PostgreSQL or nodes are away the gateway serves what needs no lease; it grants leases once they are back.
func (g *Gateway) admitNodes(ctx context.Context) error {
	tried := sync.OnceFunc(func() { close(g.tried) })
	defer tried()
	if g.keyed == nil {
		return g.admitUntil(ctx, tried)
	}
	locker, err := g.learnKeys(ctx, tried)
	switch {
	case ctx.Err() != nil:
		return nil // a stop is not a failure
	case err != nil:
		return err
	}
	asked := sync.OnceFunc(func() { g.keyed.give(locker.Source()); tried() })
	defer asked()
	if !g.cfg.InitNodes {
		return nil
	}
	g.keyed.asks()
	return g.admitUntil(ctx, asked)
}

// admitUntil admits the nodes. It calls tried on success and on the first failure other than a node timeout.
func (g *Gateway) admitUntil(ctx context.Context, tried func()) error {
	defer tried()
	failed, said := false, time.Now() // the start already reports the first failure
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		err := g.admit(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			if failed {
				g.log.Info("the Redis nodes are admitted; leases are granted")
			}
			return nil
		case !errors.Is(err, lock.ErrNodeTimeout): // the machine may be busy
			tried()
		}
		failed = true
		if time.Since(said) >= remindEvery {
			said = time.Now()
			g.log.Warn("no leases are granted yet; requests that need no lease are served", "step", "admit the Redis nodes", "error", pgtext.Of(err))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// admits reports whether the gateway has to learn the key prefix or to admit nodes.
func (g *Gateway) admits() bool { return g.keyed != nil || g.cfg.InitNodes && g.admit != nil }

// awaitNodes waits until the prefix is known and the nodes are admitted, or a first attempt has failed, for
// StartTimeout at most. The error is ctx's or that of a part that ended.
func (g *Gateway) awaitNodes(ctx context.Context) error {
	if !g.admits() {
		return nil
	}
	patience := time.NewTimer(g.cfg.StartTimeout)
	defer patience.Stop()
	select {
	case <-g.tried:
	case <-patience.C:
	case <-g.finished:
		return g.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}
