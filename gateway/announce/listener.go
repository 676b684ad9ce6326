package announce

import (
	"context"
	"log/slog"
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

const (
	sqlListen = "LISTEN " + channel

	// listenAgain is the pause before the next LISTEN.
	listenAgain = time.Second
)

// Primary leads connections to the server that is PostgreSQL.
type Primary interface {
	// Here returns a context that ends when another server is PostgreSQL.
	Here(ctx context.Context) (context.Context, context.CancelFunc)
	// Pin makes a connection that is about to be made lead to that server.
	Pin(ctx context.Context, config *pgx.ConnConfig) error
}

// Listener receives the notifications of other gateways.
type Listener struct {
	Config  *pgx.ConnConfig // of the gateway's login
	Primary Primary
	// Look ends the sessions whose grants are superseded: those for these resources, or all.
	Look func(ctx context.Context, resources ...string) error
	Log  *slog.Logger
}

// Run receives notifications and ends superseded sessions, until ctx ends.
func (l Listener) Run(ctx context.Context) error {
	for {
		listened, err := l.receive(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case listened: // if LISTEN never succeeded, PostgreSQL is away, and readiness reports it
			l.Log.Warn("failed to listen for notifications; the next look finds superseded sessions", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(listenAgain):
		}
	}
}

// receive takes notifications until its connection fails. It reports whether LISTEN succeeded, and the failure.
func (l Listener) receive(ctx context.Context) (listened bool, err error) {
	ctx, leave := l.Primary.Here(ctx)
	defer leave()
	config := l.Config.Copy()
	if err := l.Primary.Pin(ctx, config); err != nil {
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
	armed := newNotices()
	armed.add("") // notifications may have been sent before LISTEN
	following, stop := context.WithCancel(ctx)
	var follower sync.WaitGroup
	follower.Go(func() { armed.follow(following, l.Look) })
	defer follower.Wait()
	defer stop()
	for {
		notice, err := conn.WaitForNotification(ctx)
		if err != nil {
			return true, err
		}
		armed.add(notice.Payload)
	}
}
