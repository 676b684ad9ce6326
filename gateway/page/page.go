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

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/gateway/quota"
	"github.com/fencegate/fencegate/wire"
)

// Config says what a page shows. Its functions act for the context's principal.
type Config struct {
	// Know returns the principal of a token. The error is [access.ErrUnknown] if there is none, and another if the
	// token could not be verified. nil: there are no tokens, and everybody may do everything.
	Know func(ctx context.Context, token string) (*access.Principal, error)
	// Limit returns an error if a principal exceeds its request rate. nil: no limit.
	Limit func(p *access.Principal) error
	// Host reports whether the page is served under this Host header. Required.
	Host func(host string) bool
	// Status returns the gateway's status. Required.
	Status func(ctx context.Context) (wire.Status, error)
	// ListHeld returns the held resources whose names begin with prefix; more reports that there are others. It answers
	// within a few seconds, because the page waits for it: by then with an error. Required.
	ListHeld func(ctx context.Context, prefix string) (held []wire.Listed, more bool, err error)
	// Events returns the events after the one with this id, or waits for one until ctx ends; last is the id to continue
	// from. Kept does not wait, and Refused neither: it returns only refused writes, which other events do not
	// displace. All three are required.
	Events  func(ctx context.Context, after string) (events []wire.Event, last string, err error)
	Kept    func(ctx context.Context, after string) (events []wire.Event, last string)
	Refused func(ctx context.Context, after string) (events []wire.Event, last string)
	// Inspect returns what is known of a resource. Revoke takes it from the holder of this token; it fails with
	// [fence.ErrNotRaised] if another token is recorded. Both are required.
	Inspect func(ctx context.Context, resource string) (wire.Resource, error)
	Revoke  func(r *http.Request, resource, by string, seen fence.Token) (fence.Token, error)
	// Denied records an action that a visitor may not do. The request's context carries the visitor. Required.
	Denied func(r *http.Request, denied *access.DeniedError)
	// Problem returns an error in the form for the visitor. Required.
	Problem func(err error) wire.Problem

	// SessionTime is how long a log-in lasts. Defaults to 12 h.
	SessionTime time.Duration
	// MaxSessions bounds the sessions with the token of a gateway without principals, and SessionsEach those of one
	// principal; the oldest one ends. They default to 256 and 8.
	MaxSessions, SessionsEach int
	// MaxStreams bounds the open streams. A principal may have a quarter of them. Defaults to 50.
	MaxStreams int
	// Every is how often the held resources are updated. Defaults to 2 s.
	Every time.Duration
	// Logger receives log-ins. Defaults to slog.Default().
	Logger *slog.Logger
}

// Page serves the live page. It is safe for concurrent use.
type Page struct {
	cfg      Config
	mux      *http.ServeMux
	sessions *sessions
	csrf     string              // of everybody, if there are no tokens
	streams  quota.Quota[string] // one place per open stream, by the principal
}

// New creates a page.
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
		cfg: cfg, mux: http.NewServeMux(), csrf: rand.Text(), streams: quota.Quota[string]{All: cfg.MaxStreams},
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

// left formats how long a lease lasts unless it is renewed, as app.js does.
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

// policy lets the page load and send only to its own origin. The data icon stops browsers from requesting one.
const policy = "default-src 'none'; script-src 'self'; img-src data:; style-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// ServeHTTP answers paths of the page. It serves nothing under a foreign host name, and does nothing that another site
// requested.
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

// sameOrigin reports whether the browser says that a page of this host sent the request.
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

// render writes a whole page, or nothing of it.
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

// trouble is a page with an error. It offers a log-out to a logged-in visitor, whose rights may have ended, so that no
// other page does.
type trouble struct{ Title, Detail, CSRF string }

// showError shows an error page.
func (p *Page) showError(w http.ResponseWriter, r *http.Request, v visitor, err error) {
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
