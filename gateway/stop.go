package gateway

import (
	"context"
	"errors"
)

// Wait returns when a part ends by itself, with its error, or when ctx ends,
// with ctx's.
func (g *Gateway) Wait(ctx context.Context) error {
	select {
	case <-g.finished:
		return g.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Stop drains and ends everything, within LameDuck plus about twice DrainTimeout. It may be called more than once, also
// concurrently: each call returns when all is over, with the same error. Leases stay held until they are released or
// expire.
func (g *Gateway) Stop() error {
	g.ending.Do(g.end)
	return g.free()
}

// end stops what Start started, and waits for it.
func (g *Gateway) end() {
	g.mu.Lock()
	was := g.state
	g.state = stopped
	g.mu.Unlock()
	if was == started {
		g.stop()
		<-g.finished
	}
}

// free closes what New made, once.
func (g *Gateway) free() error {
	g.closed.Do(func() {
		if g.sql != nil {
			g.sql.Close()
		}
		if g.seen != nil {
			g.seen.Close()
		}
		if g.source != nil {
			g.freed = g.source.Close()
		}
		if g.pool != nil {
			g.pool.Close()
		}
		g.freed = errors.Join(g.freed, g.servers.close(), g.closeStore())
	})
	return g.freed
}
