package gateway

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Gateways notify each other by NOTIFY of the resources that were armed, so that each ends its sessions with an older
// grant. A notification is a hint: any login can send one, so the receiver asks the fence. A periodic look finds what a
// lost notification missed.

const (
	channel   = "fencegate_superseded"
	sqlListen = "LISTEN " + channel
	// The commit does not wait for the disk: if a crash loses the notification, a periodic look finds the resource.
	sqlNotify = `SELECT pg_catalog.set_config('synchronous_commit', 'off', true), pg_catalog.pg_notify('` + channel + `', said) FROM pg_catalog.unnest($1::pg_catalog.text[]) said`

	// notifyEvery is the shortest time between two transactions that notify: PostgreSQL commits those one at a time in
	// the whole server.
	notifyEvery = 20 * time.Millisecond
	// notifyTimeout bounds one such transaction.
	notifyTimeout = 5 * time.Second
	// maxSaid is PostgreSQL's limit for a notification, in bytes.
	maxSaid = 7999
	// maxNotes bounds the notifications that name resources; with more resources one notification says "any".
	maxNotes = 16
	// listenAgain is the pause before the next LISTEN.
	listenAgain = time.Second
)

// notifier collects armed resources and sends them in its own transactions: a NOTIFY in the arming transaction would
// serialize arms.
type notifier struct {
	pool *pgxpool.Pool
	log  *slog.Logger

	mu    sync.Mutex
	armed map[string]struct{}
	wake  chan struct{}
}

func newNotifier(pool *pgxpool.Pool, log *slog.Logger) *notifier {
	return &notifier{pool: pool, log: log, armed: make(map[string]struct{}), wake: make(chan struct{}, 1)}
}

// say queues a resource without waiting.
func (n *notifier) say(resource string) {
	n.mu.Lock()
	n.armed[resource] = struct{}{}
	n.mu.Unlock()
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// run notifies until ctx ends.
func (n *notifier) run(ctx context.Context) error {
	for failing := false; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-n.wake:
		}
		notes := n.notes()
		if len(notes) == 0 {
			continue // sent with the last ones
		}
		within, cancel := context.WithTimeout(ctx, notifyTimeout)
		_, err := n.pool.Exec(within, sqlNotify, notes)
		cancel()
		if err != nil && !failing && ctx.Err() == nil { // once per outage
			n.log.Warn("failed to notify other gateways of armed resources; they find superseded sessions at their next look", "error", err)
		}
		failing = err != nil
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(notifyEvery):
		}
	}
}

// notes returns the notifications for the resources armed since the last call, with one resource per line.
func (n *notifier) notes() (notes []string) {
	n.mu.Lock()
	armed := n.armed
	n.armed = make(map[string]struct{})
	n.mu.Unlock()
	for resource := range armed {
		switch last := len(notes) - 1; {
		case last >= 0 && len(notes[last])+1+len(resource) <= maxSaid:
			notes[last] += "\n" + resource
		case len(notes) == maxNotes:
			return []string{""}
		default:
			notes = append(notes, resource)
		}
	}
	return notes
}
