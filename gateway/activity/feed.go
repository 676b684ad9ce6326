package activity

import (
	"cmp"
	"context"
	"crypto/rand"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fencegate/fencegate/wire"
)

// Config says what a [Feed] keeps, and who is notified of refusals.
type Config struct {
	// Keep is how many events are remembered. Defaults to 2048: with the longest names these take 3 MiB.
	Keep int
	// KeepRefused is how many refusals are remembered separately, regardless of later events. Defaults to 512.
	KeepRefused int
	// Pause is the time between two log lines about refusals of one resource. Defaults to 10 s.
	Pause time.Duration
	// Refused is called for each refusal, before it can be read. Defaults to nil.
	Refused func(surface, code string)
	// Logger receives refusals, at level info. Defaults to slog.Default().
	Logger *slog.Logger
}

// page is how many events a reader gets at once.
const page = 128

// Feed holds the latest events of one gateway. It is safe for concurrent use.
type Feed struct {
	cfg Config
	run string // distinguishes this feed's ids from those of other gateways and earlier runs
	log *refusalLog

	mu      sync.Mutex
	all     ring
	refused ring
	last    uint64 // number of the latest event; the first one is 1
	grown   chan struct{}
}

// New creates an empty feed.
func New(cfg Config) *Feed {
	cfg.Keep = cmp.Or(cfg.Keep, 2048)
	cfg.KeepRefused = cmp.Or(cfg.KeepRefused, 512)
	cfg.Pause = cmp.Or(cfg.Pause, 10*time.Second)
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return &Feed{
		cfg: cfg, run: rand.Text()[:8], log: newRefusalLog(cfg.Logger, cfg.Pause), grown: make(chan struct{}),
		all: ring{keep: cfg.Keep}, refused: ring{keep: cfg.KeepRefused},
	}
}

// Close stops logging. It first logs how many refusals the rate limit has suppressed.
func (f *Feed) Close() { f.log.close() }

// Tell adds an event, with its time and its id.
func (f *Feed) Tell(e Event) {
	e = Cleaned(e)
	e.Time = time.Now().UTC()
	if e.Kind == wire.EventRefused && f.cfg.Refused != nil {
		f.cfg.Refused(e.Surface, e.Code)
	}
	f.add(e)
	if e.Kind == wire.EventRefused {
		f.log.add(e)
	}
}

func (f *Feed) add(e Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last++
	e.ID = f.id(f.last)
	f.all.add(f.last, e)
	if e.Kind == wire.EventRefused {
		f.refused.add(f.last, e)
	}
	close(f.grown)
	f.grown = make(chan struct{})
}

func (f *Feed) id(n uint64) string { return f.run + "-" + strconv.FormatUint(n, 10) }

// Since returns the events after the one with this id, oldest first, at most a page of
// them. An empty id means all that the feed keeps. It waits while there are none, and
// returns ctx's error when ctx ends. If events were dropped in between, the first event
// returned is of the kind missed and counts them.
func (f *Feed) Since(ctx context.Context, id string) ([]Event, error) { return f.wait(ctx, &f.all, id) }

// Kept is [Feed.Since] without the wait; it may return none.
func (f *Feed) Kept(id string) []Event {
	events, _ := f.after(&f.all, id)
	return events
}

// RefusedSince is [Feed.Since] for refusals only. Other events do not displace them. Ids are those of all events.
func (f *Feed) RefusedSince(ctx context.Context, id string) ([]Event, error) {
	return f.wait(ctx, &f.refused, id)
}

// RefusedKept is [Feed.RefusedSince] without the wait.
func (f *Feed) RefusedKept(id string) []Event {
	events, _ := f.after(&f.refused, id)
	return events
}

func (f *Feed) wait(ctx context.Context, r *ring, id string) ([]Event, error) {
	for {
		events, grown := f.after(r, id)
		if len(events) > 0 {
			return events, nil
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (f *Feed) after(r *ring, id string) (events []Event, grown <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	seen, ours := f.number(id)
	first := r.after(seen)
	switch {
	case id == "":
		first = r.oldest()
	case !ours:
		first = r.oldest()
		events = append(events, f.missed(r.dropped, 0))
	case seen < r.dropped:
		events = append(events, f.missed(r.dropped, r.lost(seen)))
	}
	for ; first < r.added && len(events) < page; first++ {
		events = append(events, r.at(first).event)
	}
	return events, f.grown
}

// missed returns an event that reports n dropped events up to number upTo. Its id is that of the last dropped event, so
// that a reader continues after it.
func (f *Feed) missed(upTo, n uint64) Event {
	return Event{ID: f.id(upTo), Time: time.Now().UTC(), Kind: wire.EventMissed, Missed: n}
}

// number parses an id of this feed.
func (f *Feed) number(id string) (n uint64, ours bool) {
	run, text, _ := strings.Cut(id, "-")
	n, err := strconv.ParseUint(text, 10, 64)
	ours = run == f.run && err == nil && n <= f.last
	return n, ours
}
