package page

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/fencegate/fencegate/gateway/access"
)

// Paths with rules other than a page's.
const (
	eventsPath = "/page/events"
	logoutPath = "/page/logout"
)

// maxForm bounds a posted form, in bytes.
const maxForm = 16 << 10

// session is one log-in.
type session struct {
	token string // checked at each request: its rights may have ended
	name  string // of the principal
	csrf  string
	until time.Time
	ended chan struct{}
}

// sessions are the open sessions, by the hash of their cookie.
type sessions struct {
	time time.Duration
	most int // without a name: all have one token
	each int // of a principal

	mu   sync.Mutex
	open map[[sha256.Size]byte]*session
}

func newSessions(long time.Duration, most, each int) *sessions {
	return &sessions{time: long, most: most, each: each, open: make(map[[sha256.Size]byte]*session)}
}

// begin opens a session and returns its cookie's value. If a principal has too many, its own oldest session ends.
func (s *sessions) begin(token, name string) (id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	var oldest [sha256.Size]byte
	var first time.Time
	own := 0
	for key, one := range s.open {
		if !now.Before(one.until) {
			s.drop(key)
			continue
		}
		if one.name != name {
			continue
		}
		own++
		if first.IsZero() || one.until.Before(first) {
			oldest, first = key, one.until
		}
	}
	if name == "" && own >= s.most || name != "" && own >= s.each {
		s.drop(oldest)
	}
	id = rand.Text() + rand.Text()
	s.open[sha256.Sum256([]byte(id))] = &session{token: token, name: name, csrf: rand.Text(), until: now.Add(s.time), ended: make(chan struct{})}
	return id
}

// drop ends a session and its streams. The caller holds mu.
func (s *sessions) drop(key [sha256.Size]byte) {
	if one := s.open[key]; one != nil {
		close(one.ended)
		delete(s.open, key)
	}
}

func (s *sessions) end(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(sha256.Sum256([]byte(id)))
}

func (s *sessions) of(id string) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := sha256.Sum256([]byte(id))
	one := s.open[key]
	if one != nil && !time.Now().Before(one.until) {
		s.drop(key)
		return nil
	}
	return one
}

// cookieName returns the cookie's name; over TLS the name binds the cookie to its host.
func cookieName(r *http.Request) string {
	if r.TLS != nil {
		return "__Host-fencegate"
	}
	return "fencegate"
}

func cookie(r *http.Request, value string, seconds int) *http.Cookie {
	return &http.Cookie{ //nolint:gosec // G124: Secure where the gateway speaks TLS; else, as on loopback, no browser would keep it
		Name: cookieName(r), Value: value, Path: "/", MaxAge: seconds, HttpOnly: true, Secure: r.TLS != nil, SameSite: http.SameSiteStrictMode,
	}
}

// visitor is the visitor of a request.
type visitor struct {
	*access.Principal

	session *session // nil without tokens
	csrf    string
	stream  bool // asks for a stream, not for a page
}

type visitorHandler func(w http.ResponseWriter, r *http.Request, v visitor)

// as serves logged-in visitors, and shows others the log-in form. A posted form must carry the session's CSRF token.
func (p *Page) as(next visitorHandler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v, err := p.visitor(r)
		v.stream = r.URL.Path == eventsPath
		switch {
		case errors.Is(err, access.ErrUnknown):
			p.askToLogIn(w, r, http.StatusUnauthorized, "")
			return
		case err != nil:
			p.showError(w, r, v, err)
			return
		}
		if err := p.limited(v.Principal); err != nil && r.URL.Path != logoutPath {
			p.showError(w, r, v, err)
			return
		}
		if r.Method == http.MethodPost {
			r.Body = http.MaxBytesReader(w, r.Body, maxForm)
			if subtle.ConstantTimeCompare([]byte(r.PostFormValue("csrf")), []byte(v.csrf)) != 1 {
				p.fail(w, http.StatusForbidden, "The form is out of date", "Nothing was done. Load the page again.")
				return
			}
		}
		next(w, r.WithContext(access.With(r.Context(), v.Principal)), v)
	}
}

// limited counts a request. It does not apply to the log-out.
func (p *Page) limited(who *access.Principal) error {
	if p.cfg.Know == nil || p.cfg.Limit == nil {
		return nil
	}
	return p.cfg.Limit(who)
}

// visitor returns the visitor of a request; [access.ErrUnknown]: not logged in.
func (p *Page) visitor(r *http.Request) (visitor, error) {
	if p.cfg.Know == nil {
		return visitor{Principal: access.Everybody(), csrf: p.csrf}, nil
	}
	c, err := r.Cookie(cookieName(r))
	if err != nil {
		return visitor{}, access.ErrUnknown
	}
	one := p.sessions.of(c.Value)
	if one == nil {
		return visitor{}, access.ErrUnknown
	}
	principal, err := p.cfg.Know(r.Context(), one.token)
	if errors.Is(err, access.ErrUnknown) { // the token was withdrawn, or has expired
		p.sessions.end(c.Value)
	}
	return visitor{Principal: principal, session: one, csrf: one.csrf}, err
}

// askToLogIn shows the log-in form; a stream gets a plain error.
func (p *Page) askToLogIn(w http.ResponseWriter, r *http.Request, status int, why string) {
	if r.URL.Path == eventsPath {
		http.Error(w, "log in", status)
		return
	}
	p.render(w, status, "login.html", struct{ Why string }{why})
}

func (p *Page) login(w http.ResponseWriter, r *http.Request) {
	if p.cfg.Know == nil {
		http.Redirect(w, r, "/", http.StatusSeeOther)
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	token := r.PostFormValue("token")
	principal, err := p.cfg.Know(r.Context(), token)
	if err != nil && !errors.Is(err, access.ErrUnknown) {
		p.showError(w, r, visitor{}, err)
		return
	}
	if err != nil || token == "" {
		p.cfg.Logger.InfoContext(r.Context(), "a log-in at the page was refused", "client", r.RemoteAddr)
		p.askToLogIn(w, r, http.StatusUnauthorized, "This token is not one of the gateway's.")
		return
	}
	if err := p.limited(principal); err != nil {
		p.showError(w, r, visitor{Principal: principal}, err)
		return
	}
	if err := principal.Denied(access.Inspect, ""); !principal.MaySome(access.Inspect) {
		p.cfg.Denied(r.WithContext(access.With(r.Context(), principal)), err)
		p.askToLogIn(w, r, http.StatusForbidden, p.cfg.Problem(err).Detail+", so there is nothing to show. Log in with another token.")
		return
	}
	if c, err := r.Cookie(cookieName(r)); err == nil {
		p.sessions.end(c.Value)
	}
	id := p.sessions.begin(token, principal.Name())
	p.cfg.Logger.InfoContext(r.Context(), "a principal logged in at the page", "principal", principal.Name(), "client", r.RemoteAddr)
	http.SetCookie(w, cookie(r, id, int(p.cfg.SessionTime.Seconds())))
	http.Redirect(w, r, "/", http.StatusSeeOther)
}

func (p *Page) logout(w http.ResponseWriter, r *http.Request, _ visitor) {
	if c, err := r.Cookie(cookieName(r)); err == nil {
		p.sessions.end(c.Value)
	}
	http.SetCookie(w, cookie(r, "", -1))
	http.Redirect(w, r, "/", http.StatusSeeOther)
}

// lasts returns a context that ends with ctx, the visitor's session or its rights.
func (v visitor) lasts(ctx context.Context) (context.Context, context.CancelFunc) {
	var over <-chan struct{}
	until := time.Now().Add(24 * time.Hour) // the browser reconnects
	if v.session != nil {
		over, until = v.session.ended, v.session.until
	}
	ctx, cancel := v.Lasts(ctx)
	ctx, stop := context.WithDeadline(ctx, until)
	go func() {
		select {
		case <-over:
		case <-ctx.Done():
		}
		cancel()
	}()
	return ctx, func() {
		stop()
		cancel()
	}
}
