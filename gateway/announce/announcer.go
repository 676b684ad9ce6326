package announce

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	channel = "fencegate_superseded"
	// The commit does not wait for the disk: if a crash loses the notification, a periodic look finds the resource.
	sqlNotify = `SELECT pg_catalog.set_config('synchronous_commit', 'off', true), pg_catalog.pg_notify('` + channel + `', said) FROM pg_catalog.unnest($1::pg_catalog.text[]) said`

	// notifyEvery is the shortest time between two transactions that notify: PostgreSQL commits those one at a time in
	// the whole server.
	notifyEvery = 20 * time.Millisecond
	// notifyTimeout bounds one such transaction.
	notifyTimeout = 5 * time.Second
	// maxPayload is PostgreSQL's limit for a notification, in bytes.
	maxPayload = 7999
	// maxNotes bounds the notifications that name resources; with more resources one notification says "any".
	maxNotes = 16
)

// Announcer collects armed resources and sends them in its own transactions: a NOTIFY in the arming transaction would
// serialize arms.
type Announcer struct {
	pool *pgxpool.Pool
	log  *slog.Logger

	mu    sync.Mutex
	armed map[string]struct{}
	wake  chan struct{}
}

// New returns an Announcer that notifies by connections of a pool.
func New(pool *pgxpool.Pool, log *slog.Logger) *Announcer {
	return &Announcer{pool: pool, log: log, armed: make(map[string]struct{}), wake: make(chan struct{}, 1)}
}

// Announce queues a resource without waiting.
func (a *Announcer) Announce(resource string) {
	a.mu.Lock()
	a.armed[resource] = struct{}{}
	a.mu.Unlock()
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// Run notifies until ctx ends.
func (a *Announcer) Run(ctx context.Context) error {
	for failing := false; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-a.wake:
		}
		notes := a.notes()
		if len(notes) == 0 {
			continue // sent with the last ones
		}
		within, cancel := context.WithTimeout(ctx, notifyTimeout)
		_, err := a.pool.Exec(within, sqlNotify, notes)
		cancel()
		if err != nil && !failing && ctx.Err() == nil { // once per outage
			a.log.Warn("failed to notify other gateways of armed resources; they find superseded sessions at their next look", "error", err)
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
func (a *Announcer) notes() (notes []string) {
	a.mu.Lock()
	armed := a.armed
	a.armed = make(map[string]struct{})
	a.mu.Unlock()
	for resource := range armed {
		switch last := len(notes) - 1; {
		case last >= 0 && len(notes[last])+1+len(resource) <= maxPayload:
			notes[last] += "\n" + resource
		case len(notes) == maxNotes:
			return []string{""}
		default:
			notes = append(notes, resource)
		}
	}
	return notes
}
