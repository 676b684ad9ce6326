package gateway

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// maxNotices bounds the resources remembered until the next look. Beyond it, the look covers all resources.
const maxNotices = 1024

// notices collects the resources that notifications name until the fence is asked. Any role of the database can send
// any number of them. They are received as fast as they come, so that PostgreSQL's queue does not fill, and looked up
// together.
type notices struct {
	mu    sync.Mutex
	armed map[string]struct{}
	any   bool
	wake  chan struct{}
}

func newNotices() *notices {
	return &notices{armed: make(map[string]struct{}), wake: make(chan struct{}, 1)}
}

// add takes the payload of a notification.
func (n *notices) add(payload string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.any:
	case payload == "":
		n.any = true
	default:
		for resource := range strings.SplitSeq(payload, "\n") {
			n.armed[resource] = struct{}{}
		}
		n.any = len(n.armed) > maxNotices
	}
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// take returns the resources named since the last call; none: any resource may be meant. It reports false if there was
// no notification.
func (n *notices) take() (armed []string, some bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	some = n.any || len(n.armed) > 0
	if !n.any {
		for resource := range n.armed {
			armed = append(armed, resource)
		}
	}
	n.armed, n.any = make(map[string]struct{}), false
	return armed, some
}

// follow calls look with the named resources, at once and then at most once every notifyEvery, until ctx ends.
func (n *notices) follow(ctx context.Context, look func(context.Context, ...string) error) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.wake:
		}
		armed, some := n.take()
		if !some {
			continue // included in the last look
		}
		_ = look(ctx, armed...) // the periodic look reports the error
		select {
		case <-ctx.Done():
			return
		case <-time.After(notifyEvery):
		}
	}
}

// receive takes notifications until its connection fails. It reports whether LISTEN
// succeeded, and the failure.
func (g *Gateway) receive(ctx context.Context) (listened bool, err error) {
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
	named := newNotices()
	named.add("") // notifications may have been sent before LISTEN
	following, stop := context.WithCancel(ctx)
	var follower sync.WaitGroup
	follower.Go(func() { named.follow(following, g.pg.Look) })
	defer follower.Wait()
	defer stop()
	for {
		notice, err := conn.WaitForNotification(ctx)
		if err != nil {
			return true, err
		}
		named.add(notice.Payload)
	}
}

// listen receives the notifications of other gateways and ends superseded sessions, until ctx ends.
func (g *Gateway) listen(ctx context.Context) error {
	for {
		listened, err := g.receive(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case listened: // if LISTEN never succeeded, PostgreSQL is away, and readiness reports it
			g.log.Warn("failed to listen for notifications; the next look finds superseded sessions", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(listenAgain):
		}
	}
}
