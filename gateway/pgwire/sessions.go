package pgwire

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"
)

// registry holds the sessions of a server, open or not yet.
type registry struct {
	mu       sync.Mutex
	all      map[*session]struct{}
	passed   Traffic // in bytes
	stopping bool
}

// add returns false if the server stops.
func (r *registry) add(ss *session) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopping {
		return false
	}
	if r.all == nil {
		r.all = make(map[*session]struct{})
	}
	r.all[ss] = struct{}{}
	return true
}

// remove adds the session's traffic to the total.
func (r *registry) remove(ss *session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ss.tally(&r.passed)
	delete(r.all, ss)
}

// each calls f for the current sessions.
func (r *registry) each(f func(*session)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for ss := range r.all {
		f(ss)
	}
}

// stop lets no more sessions in.
func (r *registry) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopping = true
}

// end ends the sessions.
func (r *registry) end(how closing) { r.each(func(ss *session) { ss.end(how) }) }

// watchIdle ends sessions that are idle for too long, until ctx ends. Periodic checks spare the data path reading the
// clock.
func (r *registry) watchIdle(ctx context.Context, timeouts idleTimeouts) {
	pause := timeouts.pause()
	if pause == 0 {
		return
	}
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			r.each(func(ss *session) { ss.endIfIdle(now, timeouts) })
		}
	}
}

// list returns the open sessions, the oldest first.
func (r *registry) list() (all []Session) {
	r.each(func(ss *session) {
		if one, ok := ss.describe(); ok {
			all = append(all, one)
		}
	})
	slices.SortFunc(all, func(a, b Session) int { return cmp.Or(a.Since.Compare(b.Since), strings.Compare(a.ID, b.ID)) })
	return all
}

// traffic returns the sum over all sessions.
func (r *registry) traffic() Traffic {
	r.mu.Lock()
	defer r.mu.Unlock()
	var granted, others int
	for ss := range r.all {
		switch resource, open := ss.tally(&r.passed); {
		case !open:
		case resource == "":
			others++
		default:
			granted++
		}
	}
	all := r.passed
	all.Granted, all.Others = granted, others
	return all
}

// serverOf returns the server of the open session that a cancel request names by its backend's key; nil: not known.
func (r *registry) serverOf(key []byte) (at *Upstream) {
	r.each(func(ss *session) {
		if ss.isOpen() && bytes.Equal(ss.upstream.key, key) {
			at = &ss.upstream.way
		}
	})
	return at
}
