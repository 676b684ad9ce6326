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

// Stop drains and ends everything, within LameDuck plus about twice DrainTimeout. It may be called more than once, and
// returns when all is over. Leases stay held until they are released or expire.
func (g *Gateway) Stop() error {
	g.mu.Lock()
	was := g.state
	g.state = stopped
	g.mu.Unlock()
	if was == started {
		g.stop()
		<-g.finished
	}
	return g.free()
}

// free closes what New made.
func (g *Gateway) free() (err error) {
	g.closed.Do(func() {
		if g.sql != nil {
			g.sql.Close()
		}
		if g.seen != nil {
			g.seen.Close()
		}
		if g.source != nil {
			err = g.source.Close()
		}
		if g.pool != nil {
			g.pool.Close()
		}
		err = errors.Join(err, g.servers.close(), g.closeStore())
	})
	return err
}
