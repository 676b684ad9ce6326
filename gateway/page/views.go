package page

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/wire"
)

// maxFeed bounds the events and the refusals that the page shows.
const maxFeed = 100

// view is the content of the page.
type view struct {
	Principal string
	CSRF      string
	LoggedIn  bool
	Now       now
	Feed      []wire.Event // the latest first, without refusals
	Refused   []wire.Event // the latest first
	Last      string       // the event id from which the feed continues
	Done      string       // what was just done
}

// now is the part that is updated.
type now struct {
	Prefix  string
	Status  wire.Status
	Leases  []row
	More    bool
	Trouble string // why the held resources are not known; "": they are
}

// row is a held resource.
type row struct {
	wire.Listed

	MayRevoke bool
}

func (p *Page) now(ctx context.Context, prefix string) now {
	n := now{Prefix: prefix}
	var err error
	if n.Status, err = p.cfg.Status(ctx); err != nil {
		n.Trouble = p.cfg.Problem(err).Detail
		return n
	}
	if prefix != "" && fence.ValidateResource(prefix) != nil {
		n.Trouble = "No resource name begins with this."
		return n
	}
	held, more, err := p.cfg.ListHeld(ctx, prefix)
	if err != nil {
		n.Trouble = "The held leases can't be listed now: " + p.cfg.Problem(err).Detail
	}
	who := access.Of(ctx)
	for _, one := range held {
		n.Leases = append(n.Leases, row{one, who.May(access.Revoke, one.Resource)})
	}
	n.More = more
	return n
}

// about reports whether an event matches the visitor's search.
func about(prefix string, e wire.Event) bool {
	return prefix == "" || e.Resource != "" && strings.HasPrefix(e.Resource, prefix) || e.Needed != "" && strings.HasPrefix(e.Needed, prefix)
}

func (p *Page) show(w http.ResponseWriter, r *http.Request, v visitor) {
	ctx := r.Context()
	if !v.MaySome(access.Inspect) {
		p.showError(w, r, v, v.Denied(access.Inspect, ""))
		return
	}
	prefix := r.URL.Query().Get("prefix")
	page := view{Principal: v.Name(), CSRF: v.csrf, LoggedIn: v.session != nil, Now: p.now(ctx, prefix)}
	seen := map[string]bool{} // a refusal between the two queries is in the second only
	page.Refused, _ = latest(ctx, p.cfg.Refused, func(e wire.Event) bool {
		seen[e.ID] = true
		return e.Kind == wire.EventRefused && about(prefix, e)
	})
	page.Feed, page.Last = latest(ctx, p.cfg.Kept, func(e wire.Event) bool {
		if e.Kind == wire.EventRefused && about(prefix, e) && !seen[e.ID] {
			page.Refused = slices.Insert(page.Refused, 0, e)
		}
		return e.Kind != wire.EventRefused && about(prefix, e)
	})
	p.render(w, http.StatusOK, "page.html", page)
}

// latest returns the kept events that want accepts, the latest first, at most maxFeed.
func latest(ctx context.Context, kept func(context.Context, string) ([]wire.Event, string), want func(wire.Event) bool) (found []wire.Event, last string) {
	for {
		events, next := kept(ctx, last)
		if next == last {
			slices.Reverse(found)
			return found, last
		}
		last = next
		for _, e := range events {
			if want(e) {
				found = append(found, e)
			}
		}
		found = found[max(0, len(found)-maxFeed):]
	}
}

// watch streams the held resources and new events, as HTML.
func (p *Page) watch(w http.ResponseWriter, r *http.Request, v visitor) {
	if !v.MaySome(access.Inspect) {
		p.showError(w, r, v, v.Denied(access.Inspect, ""))
		return
	}
	leave, ok := p.streams.Take(v.Name(), v.ShareOf(p.cfg.MaxStreams))
	if !ok {
		http.Error(w, "too many of these pages are open", http.StatusServiceUnavailable)
		return
	}
	defer leave()
	ctx, cancel := v.lasts(r.Context())
	defer cancel()
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no")
	s := stream{w: w, prefix: r.URL.Query().Get("prefix"), after: r.URL.Query().Get("after")}
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		s.after = last
	}
	for ctx.Err() == nil {
		if s.send("now", "", "now", p.now(ctx, s.prefix)) != nil {
			return
		}
		if p.follow(ctx, &s) != nil {
			return
		}
	}
}

// follow sends events until the held resources are due for an update.
func (p *Page) follow(ctx context.Context, s *stream) error {
	within, cancel := context.WithTimeout(ctx, p.cfg.Every)
	defer cancel()
	for {
		events, last, err := p.cfg.Events(within, s.after)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil { // time for the update
			return nil //nolint:nilerr // see above
		}
		s.after = last
		for _, e := range events {
			if !about(s.prefix, e) {
				continue
			}
			kind := "feed"
			if e.Kind == wire.EventRefused {
				kind = "refused"
			}
			if err := s.send(kind, e.ID, "event", e); err != nil {
				return err
			}
		}
	}
}

// stream is the event stream of one visitor.
type stream struct {
	w             http.ResponseWriter
	prefix, after string
}

// send renders a template as one event of the stream.
func (s *stream) send(kind, id, name string, data any) error {
	var html, text strings.Builder
	if err := templates.ExecuteTemplate(&html, name, data); err != nil {
		return err
	}
	if id != "" {
		fmt.Fprintf(&text, "id: %s\n", id)
	}
	fmt.Fprintf(&text, "event: %s\n", kind)
	for line := range strings.Lines(html.String()) {
		if line = strings.TrimSpace(line); line != "" {
			fmt.Fprintf(&text, "data: %s\n", line)
		}
	}
	text.WriteString("\n")
	c := http.NewResponseController(s.w)
	_ = c.SetWriteDeadline(time.Now().Add(time.Minute)) // a test's recorder has no deadlines
	if _, err := s.w.Write([]byte(text.String())); err != nil {
		return err
	}
	return c.Flush()
}
