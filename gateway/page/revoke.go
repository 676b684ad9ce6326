package page

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/wire"
)

// confirmation asks the visitor to confirm a revocation.
type confirmation struct {
	CSRF   string
	Known  wire.Resource
	Locked bool
	Why    string // why it asks again; "": first time
}

// revocable returns what is known of a resource, if the visitor may revoke it.
func (p *Page) revocable(w http.ResponseWriter, r *http.Request, v visitor, resource string) (known wire.Resource, ok bool) {
	if err := fence.ValidateResource(resource); err != nil {
		p.showError(w, r, v, err)
		return known, false
	}
	for _, verb := range []access.Verb{access.Inspect, access.Revoke} {
		if err := v.Check(verb, resource); err != nil {
			p.showError(w, r, v, err)
			return known, false
		}
	}
	known, err := p.cfg.Inspect(r.Context(), resource)
	if err != nil {
		p.showError(w, r, v, err)
	}
	return known, err == nil
}

func (p *Page) confirm(w http.ResponseWriter, r *http.Request, v visitor) {
	known, ok := p.revocable(w, r, v, r.URL.Query().Get("resource"))
	if ok {
		p.ask(w, v, known, "")
	}
}

func (p *Page) ask(w http.ResponseWriter, v visitor, known wire.Resource, why string) {
	p.render(w, http.StatusOK, "revoke.html", confirmation{CSRF: v.csrf, Known: known, Locked: known.Locked != nil && *known.Locked, Why: why})
}

// revoke takes the resource from the holder that the visitor saw, not from a later one.
func (p *Page) revoke(w http.ResponseWriter, r *http.Request, v visitor) {
	resource := r.PostFormValue("resource")
	known, ok := p.revocable(w, r, v, resource)
	if !ok {
		return
	}
	if known.Token.String() != r.PostFormValue("token") {
		p.askAgain(w, r, v, known)
		return
	}
	by := "the page"
	if v.Name() != "" {
		by = v.Name() + ", on the page"
	}
	switch _, err := p.cfg.Revoke(r, resource, by, known.Token); {
	case errors.Is(err, fence.ErrNotRaised): // since the visitor looked
		if known, ok = p.revocable(w, r, v, resource); ok {
			p.askAgain(w, r, v, known)
		}
	case err != nil:
		p.showError(w, r, v, err)
	default:
		http.Redirect(w, r, "/?"+url.Values{"prefix": {resource}}.Encode(), http.StatusSeeOther)
	}
}

// askAgain asks for confirmation with the current holder.
func (p *Page) askAgain(w http.ResponseWriter, r *http.Request, v visitor, known wire.Resource) {
	p.ask(w, v, known, fmt.Sprintf("Another acquired it since: the fence stood at token %s when you looked. Nothing was done to the one below.", r.PostFormValue("token")))
}
