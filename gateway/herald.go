package gateway

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Gateways tell each other by NOTIFY which resources were armed, so that each
// ends its sessions that carry an older grant. A notification is a hint: whoever
// hears it asks the fence, since anybody in the database can send one. What is
// missed is found by looking, once in a while.

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

// herald collects what was armed and says it in transactions of its own: a NOTIFY
// in the arming one would make arms wait for each other.
type herald struct {
	pool *pgxpool.Pool
	log  *slog.Logger

	mu    sync.Mutex
	armed map[string]struct{}
	wake  chan struct{}
}

func newHerald(pool *pgxpool.Pool, log *slog.Logger) *herald {
	return &herald{pool: pool, log: log, armed: make(map[string]struct{}), wake: make(chan struct{}, 1)}
}

// say never waits.
func (h *herald) say(resource string) {
	h.mu.Lock()
	h.armed[resource] = struct{}{}
	h.mu.Unlock()
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// run notifies until ctx ends.
func (h *herald) run(ctx context.Context) error {
	for failing := false; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-h.wake:
		}
		notes := h.notes()
		if len(notes) == 0 {
			continue // said with the last ones
		}
		within, cancel := context.WithTimeout(ctx, notifyTimeout)
		_, err := h.pool.Exec(within, sqlNotify, notes)
		cancel()
		if err != nil && !failing && ctx.Err() == nil { // once, until it works again
			h.log.Warn("other gateways can't be told what was armed; they find it by looking", "error", err)
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
func (h *herald) notes() (notes []string) {
	h.mu.Lock()
	armed := h.armed
	h.armed = make(map[string]struct{})
	h.mu.Unlock()
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

// listen hears what gateways say, and ends sessions, until ctx ends.
func (g *Gateway) listen(ctx context.Context) error {
	for {
		heard, err := g.hear(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case heard: // where it never could, PostgreSQL is away, and readiness says so
			g.log.Warn("other gateways can't be heard; superseded sessions are found by looking", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(listenAgain):
		}
	}
}
