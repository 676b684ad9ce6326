package gateway

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Gateways tell each other by NOTIFY which resources were armed, so that each ends its
// sessions with an older grant. A notification is a hint: any login can send one, so the
// receiver asks the fence. A periodic look finds what a lost notification missed.

const (
	channel   = "fencegate_superseded"
	sqlListen = "LISTEN " + channel
	// Not waiting for the disk: a notification that a crash loses is found by looking.
	sqlNotify = `SELECT pg_catalog.set_config('synchronous_commit', 'off', true), pg_catalog.pg_notify('` + channel + `', said) FROM pg_catalog.unnest($1::pg_catalog.text[]) said`

	// notifyEvery is the shortest time between two transactions that notify: their
	// commits go one by one, in the whole server.
	notifyEvery = 20 * time.Millisecond
	// notifyTimeout bounds one of them.
	notifyTimeout = 5 * time.Second
	// maxSaid is PostgreSQL's limit of a notification, in bytes.
	maxSaid = 7999
	// maxNotes is how many notifications name resources; beyond, one says "any".
	maxNotes = 16
	// listenAgain is the pause before listening again.
	listenAgain = time.Second
)

// notifier collects what was armed and sends it in transactions of its own: a NOTIFY
// in the arming one would make arms wait for each other.
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

// say never waits.
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
			continue // said with the last ones
		}
		within, cancel := context.WithTimeout(ctx, notifyTimeout)
		_, err := n.pool.Exec(within, sqlNotify, notes)
		cancel()
		if err != nil && !failing && ctx.Err() == nil { // once, until it works again
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

// notes are the resources that were armed since the last time, a line each.
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
