package gateway

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/fencegate/fencegate/internal/pgtext"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/admin"
)

// remindEvery is how often the log repeats why no leases can be granted yet.
const remindEvery = time.Minute

// admitNodes admits the Redis nodes, and retries until ctx ends. It closes tried on success and on the first failure
// other than a node timeout. While PostgreSQL or nodes are away the gateway serves what needs no lease; it grants leases
// once they are back.
func (g *Gateway) admitNodes(ctx context.Context) error {
	tried := sync.OnceFunc(func() { close(g.tried) })
	defer tried()
	failed, said := false, time.Now() // the start already reports the first failure
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		err := admin.Of(g.locker).Init(ctx)
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

// admits reports whether the gateway has to admit nodes.
func (g *Gateway) admits() bool { return g.cfg.InitNodes && g.locker != nil }

// awaitNodes waits until the nodes are admitted, or a first attempt has failed, for StartTimeout at most. The error is ctx's or that of a part that ended.
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
