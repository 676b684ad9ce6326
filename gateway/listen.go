package gateway

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// maxHeard is how many resources are remembered until the next look; beyond, it
// is for all.
const maxHeard = 1024

// heard collects what notifications name until the fence is asked. Anybody in the
// database can send as many as he likes: they are taken as fast as they come, or
// they would fill PostgreSQL's queue for all, and are looked into together.
type heard struct {
	mu    sync.Mutex
	armed map[string]struct{}
	any   bool
	wake  chan struct{}
}

func newHeard() *heard { return &heard{armed: make(map[string]struct{}), wake: make(chan struct{}, 1)} }

// add takes the payload of a notification.
func (h *heard) add(payload string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.any:
	case payload == "":
		h.any = true
	default:
		for resource := range strings.SplitSeq(payload, "\n") {
			h.armed[resource] = struct{}{}
		}
		h.any = len(h.armed) > maxHeard
	}
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// take returns what was named since the last time; none: any. It is false where
// nothing was said.
func (h *heard) take() (armed []string, said bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	said = h.any || len(h.armed) > 0
	if !h.any {
		for resource := range h.armed {
			armed = append(armed, resource)
		}
	}
	h.armed, h.any = make(map[string]struct{}), false
	return armed, said
}

// follow calls look with what was heard, at once, and then at most every
// notifyEvery, until ctx ends.
func (h *heard) follow(ctx context.Context, look func(context.Context, ...string) error) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.wake:
		}
		armed, said := h.take()
		if !said {
			continue // it was taken with the last ones
		}
		_ = look(ctx, armed...) // an error is for the looks now and then to tell
		select {
		case <-ctx.Done():
			return
		case <-time.After(notifyEvery):
		}
	}
}

// hear reports whether it could listen, and why no more.
func (g *Gateway) hear(ctx context.Context) (heard bool, err error) {
	ctx, leave := g.servers.here(ctx)
	defer leave()
	config := g.parsed.pool.ConnConfig.Copy()
	if err := g.servers.pin(ctx, config); err != nil {
		return false, err
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return false, err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), notifyTimeout)
		defer cancel()
		_ = conn.Close(closing)
	}()
	if _, err := conn.Exec(ctx, sqlListen); err != nil {
		return false, err
	}
	said := newHeard()
	said.add("") // what was said before
	following, stop := context.WithCancel(ctx)
	var follower sync.WaitGroup
	follower.Go(func() { said.follow(following, g.pg.Look) })
	defer follower.Wait()
	defer stop()
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return true, err
		}
		said.add(n.Payload)
	}
}

// listen receives what other gateways notify, and ends superseded sessions, until ctx ends.
func (g *Gateway) listen(ctx context.Context) error {
	for {
		heard, err := g.hear(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case heard: // where it never could, PostgreSQL is away, and readiness says so
			g.log.Warn("failed to listen for notifications; the next look finds superseded sessions", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(listenAgain):
		}
	}
}
