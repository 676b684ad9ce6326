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

// admitNodes admits the Redis nodes, until it is done or ctx ends. Nodes that are away end
// no gateway: it serves what needs no lease, and leases once they are there.
func (g *Gateway) admitNodes(ctx context.Context) error {
	tried := sync.OnceFunc(func() { close(g.tried) })
	defer tried()
	failed, said := false, time.Now() // the first failure is one of those that the start tells
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
			g.log.Warn("no leases are granted yet; the gateway serves what needs none", "step", "admit the Redis nodes", "error", pgtext.Of(err))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// admits reports whether it is asked to admit nodes.
func (g *Gateway) admits() bool { return g.cfg.InitNodes && g.admit != nil }

// awaitNodes waits until the nodes are admitted or are seen not to be, for the start timeout
// at most. The error is ctx's, or of a part that ended.
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
