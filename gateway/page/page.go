package page

import (
	"cmp"
	"context"
	"crypto/rand"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/fencegate/fencegate/client/wire"
	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/access"
)

// Config says what a page shows, as the context's principal may see it.
type Config struct {
	// Know is who presents a token, with [access.ErrUnknown] where nobody does, and another error
	// where that could not be found out. nil: there are no tokens, and everybody may do everything.
	Know func(ctx context.Context, token string) (*access.Principal, error)
	// Limit returns an error where a principal asks too often. nil: there is no limit.
	Limit func(p *access.Principal) error
	// Host reports whether a page is served under this name, of a Host header. Required.
	Host func(host string) bool
	// Status is how the gateway is. Required.
	Status func(ctx context.Context) (wire.Status, error)
	// Held are the resources that somebody holds whose names begin with prefix, the first ones
	// of many. Required.
	Held func(ctx context.Context, prefix string) (held []wire.Listed, more bool, err error)
	// Events returns what came after the event with this id, or waits for it until ctx ends;
	// last is where to go on. Kept returns at once, and Refused so for the refused writes alone,
	// which other events do not push out. Required.
	Events  func(ctx context.Context, after string) (events []wire.Event, last string, err error)
	Kept    func(ctx context.Context, after string) (events []wire.Event, last string)
	Refused func(ctx context.Context, after string) (events []wire.Event, last string)
	// Inspect is what is known of a resource, and Revoke takes it from the holder of this token;
	// it fails with [fence.ErrNotRaised] where another is recorded. Required.
	Inspect func(ctx context.Context, resource string) (wire.Resource, error)
	Revoke  func(r *http.Request, resource, by string, seen fence.Token) (fence.Token, error)
	// Denied records what a visitor may not do; the request's context carries the visitor. Required.
	Denied func(r *http.Request, denied *access.DeniedError)
	// Problem is an error as the visitor may see it. Required.
	Problem func(err error) wire.Problem

	// SessionTime is how long somebody stays logged in. Defaults to 12 h.
	SessionTime time.Duration
	// MaxSessions bounds how many are logged in with the one token of a gateway without
	// principals, and SessionsEach how many of one principal; the oldest gives way. They default
	// to 256 and 8.
	MaxSessions, SessionsEach int
	// MaxStreams bounds how many watch at once. A principal has a quarter of them. Defaults to 50.
	MaxStreams int
	// Every is how often what is held is shown anew. Defaults to 2 s.
	Every time.Duration
	// Logger receives log-ins. Defaults to slog.Default().
	Logger *slog.Logger
}

// Page serves the live page. It is safe for concurrent use.
type Page struct {
	cfg      Config
	mux      *http.ServeMux
	sessions *sessions
	csrf     string         // of everybody, where there are no tokens
	streams  *access.Shares // a place for each that watches
}

// New makes a page.
func New(cfg Config) *Page {
	cfg.SessionTime = cmp.Or(cfg.SessionTime, 12*time.Hour)
	cfg.MaxSessions = cmp.Or(cfg.MaxSessions, 256)
	cfg.SessionsEach = cmp.Or(cfg.SessionsEach, 8)
	cfg.MaxStreams = cmp.Or(cfg.MaxStreams, 50)
	cfg.Every = cmp.Or(cfg.Every, 2*time.Second)
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	p := &Page{
		cfg: cfg, mux: http.NewServeMux(), csrf: rand.Text(), streams: access.NewShares(cfg.MaxStreams),
		sessions: newSessions(cfg.SessionTime, cfg.MaxSessions, cfg.SessionsEach),
	}
	p.mux.HandleFunc("GET /{$}", p.as(p.show))
	p.mux.HandleFunc("POST /page/login", p.login)
	p.mux.HandleFunc("POST "+logoutPath, p.as(p.logout))
	p.mux.HandleFunc("GET "+eventsPath, p.as(p.watch))
	p.mux.HandleFunc("GET /page/revoke", p.as(p.confirm))
	p.mux.HandleFunc("POST /page/revoke", p.as(p.revoke))
	p.mux.HandleFunc("GET /page/app.js", asset("app.js", "text/javascript; charset=utf-8"))
	p.mux.HandleFunc("GET /page/style.css", asset("style.css", "text/css; charset=utf-8"))
	return p
}

//go:embed assets
var assets embed.FS

var templates = template.Must(template.New("").Funcs(template.FuncMap{
	"left": left, "clock": func(t time.Time) string { return t.UTC().Format(time.RFC3339) }, "seconds": func(ms int64) int64 { return (ms + 999) / 1000 },
	"uptime": func(ms int64) string { return (time.Duration(ms) * time.Millisecond).Round(time.Second).String() },
}).ParseFS(assets, "assets/*.html"))

// left is how long a lease lasts unless it is renewed, as app.js shows it.
func left(ms *int64) string {
	if ms == nil {
		return "never ends"
	}
	d := time.Duration(*ms) * time.Millisecond
	if d < time.Minute {
		return fmt.Sprintf("%.1fs", d.Seconds())
	}
	return d.Truncate(time.Second).String()
}

// policy lets the page load and do only what is its own. The empty icon, without which browsers ask for one, is data.
const policy = "default-src 'none'; script-src 'self'; img-src data:; style-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// ServeHTTP answers paths of the page. Nothing of it is served under a name that is not the
// gateway's, and nothing is done that another site asked for.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "same-origin") // with no-referrer a browser would send no Origin
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	switch {
	case !p.cfg.Host(r.Host):
		p.fail(w, http.StatusBadRequest, "This name is not served here", "Without tokens the page is served under a loopback name only, such as localhost.")
	case r.Method == http.MethodPost && !sameOrigin(r):
		p.fail(w, http.StatusForbidden, "Asked for by another site", "Nothing was done. Use the form on this gateway's own page.")
	default:
		p.mux.ServeHTTP(w, r)
	}
}

// sameOrigin reports whether a browser says that a page of this very host asks.
func sameOrigin(r *http.Request) bool {
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "same-origin" {
		return false
	}
	origin, err := url.Parse(r.Header.Get("Origin"))
	return err == nil && origin.Host != "" && strings.EqualFold(origin.Host, r.Host)
}

func asset(name, kind string) http.HandlerFunc {
	body, err := assets.ReadFile("assets/" + name)
	if err != nil {
		panic(err) // it is embedded
	}
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", kind)
		_, _ = w.Write(body)
	}
}

// render writes a page, or nothing of it.
func (p *Page) render(w http.ResponseWriter, status int, name string, data any) {
	var text strings.Builder
	if err := templates.ExecuteTemplate(&text, name, data); err != nil {
		p.cfg.Logger.Error("failed to render the page", "template", name, "error", err)
		http.Error(w, "failed to render the page; the gateway's log has the cause", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text.String()))
}

func (p *Page) fail(w http.ResponseWriter, status int, title, detail string) {
	p.render(w, status, "problem.html", trouble{Title: title, Detail: detail})
}

// trouble is why something is not shown. Who is logged in may log out there: its rights may have
// ended, and no other page be shown.
type trouble struct{ Title, Detail, CSRF string }

// failed shows an error.
func (p *Page) failed(w http.ResponseWriter, r *http.Request, v visitor, err error) {
	if denied, ok := errors.AsType[*access.DeniedError](err); ok {
		p.cfg.Denied(r, denied)
	}
	problem := p.cfg.Problem(err)
	about := trouble{Title: problem.Title, Detail: problem.Detail + " " + problem.Hint}
	if v.session != nil {
		about.CSRF = v.csrf
	}
	if problem.RetryAfterMS > 0 {
		w.Header().Set("Retry-After", strconv.FormatInt((problem.RetryAfterMS+999)/1000, 10))
	}
	if v.stream {
		http.Error(w, problem.Title, problem.Status)
		return
	}
	p.render(w, problem.Status, "problem.html", about)
}
