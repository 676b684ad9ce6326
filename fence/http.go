package fence

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
)

// Headers that carry a grant over HTTP.
const (
	// HeaderResource is the resource, percent-encoded as [EscapeResource] does.
	HeaderResource = "Fencing-Resource"
	// HeaderToken is the grant as the acquirer received it: "34.<seal>".
	HeaderToken = "Fencing-Token"
)

type contextKey struct{}

// NewContext returns a context that carries a grant.
func NewContext(ctx context.Context, g Grant) context.Context {
	return context.WithValue(ctx, contextKey{}, g)
}

// FromContext returns the grant set by [Handler] or [NewContext].
func FromContext(ctx context.Context) (g Grant, ok bool) {
	g, ok = ctx.Value(contextKey{}).(Grant)
	return g, ok
}

// SetHeader puts a grant into the headers of a request. The token header contains the secret.
func SetHeader(h http.Header, g Grant) {
	h.Set(HeaderResource, EscapeResource(g.Resource))
	h.Set(HeaderToken, g.Presented())
}

// FromHeader reads the grant of a request. A missing grant is a [*NoGrantError]. A malformed one, or one header
// without the other, is an [*InvalidError] that does not repeat the input.
func FromHeader(h http.Header) (Grant, error) {
	resource, presented := h.Values(HeaderResource), h.Values(HeaderToken)
	switch {
	case len(resource) == 0 && len(presented) == 0:
		return Grant{}, &NoGrantError{}
	case len(resource) != 1:
		return Grant{}, &InvalidError{Field: HeaderResource, Reason: "is needed exactly once"}
	case len(presented) != 1:
		return Grant{}, &InvalidError{Field: HeaderToken, Reason: "is needed exactly once"}
	}
	name, err := UnescapeResource(resource[0])
	if err != nil {
		return Grant{}, err
	}
	return ParseGrant(name, presented[0])
}

// HandlerOption is a choice for [Handler].
type HandlerOption func(*handler)

// RequireGrant makes [Handler] refuse requests without a grant with 428 and problem "no-grant". Without this option
// they pass, and [FromContext] returns ok = false.
func RequireGrant() HandlerOption { return func(h *handler) { h.require = true } }

// Handler reads the headers Fencing-Resource and Fencing-Token of each request into its context, where [FromContext]
// finds the grant. It answers malformed headers with 400 and does not check the grant itself: only the transaction
// that writes can do that, so pass the grant to pgfence.InTx or sqlfence.InTx.
//
//	mux.Handle("POST /orders/{id}/pay", fence.Handler(http.HandlerFunc(pay), fence.RequireGrant()))
//
//	func pay(w http.ResponseWriter, r *http.Request) {
//		grant, _ := fence.FromContext(r.Context())
//		err := pgfence.InTx(r.Context(), pool, grant, func(tx pgx.Tx) error { … })
//		if fence.WriteProblem(w, err) {
//			return // a newer holder took over: 412, and the problem says so
//		}
//		if err != nil {
//			http.Error(w, "the order was not paid", http.StatusInternalServerError)
//			return
//		}
//		…
//	}
func Handler(next http.Handler, opts ...HandlerOption) http.Handler {
	h := &handler{next: next}
	for _, opt := range opts {
		opt(h)
	}
	return h
}

type handler struct {
	next    http.Handler
	require bool
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g, err := FromHeader(r.Header)
	switch {
	case err == nil:
		r = r.WithContext(NewContext(r.Context(), g))
	case h.require || !errors.Is(err, ErrNoGrant):
		WriteProblem(w, err)
		return
	}
	h.next.ServeHTTP(w, r)
}

// problem is an error as the gateway's HTTP API reports it (RFC 9457).
type problem struct {
	Type      string `json:"type"`
	Title     string `json:"title"`
	Status    int    `json:"status"`
	Detail    string `json:"detail"`
	Code      string `json:"code"`
	Hint      string `json:"hint,omitempty"`
	Field     string `json:"field,omitempty"`
	Resource  string `json:"resource,omitempty"`
	Needed    string `json:"needed,omitempty"`
	Presented Token  `json:"presented,omitzero"`
	Recorded  Token  `json:"recorded,omitzero"`
}

// WriteProblem answers a request with the problem (RFC 9457) for a fence error: a refusal with its status in [Codes],
// malformed input with 400, an unknown outcome with 502. It reports whether err was one of these; for other errors,
// and nil, it writes nothing. The problem contains no secret, and of the error only the facts in its type.
func WriteProblem(w http.ResponseWriter, err error) bool {
	p, ok := problemOf(err)
	if !ok {
		return false
	}
	p.Type = "urn:fencegate:problem:" + p.Type
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(p.Status)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(p) // fails if the client has disconnected
	return true
}

func problemOf(err error) (p problem, ok bool) {
	var invalid *InvalidError
	code, refused := CodeOf(err)
	switch {
	case errors.Is(err, ErrUnknown):
		return problem{
			Type: "unknown", Title: "The outcome is unknown", Status: http.StatusBadGateway, Code: "unknown",
			Detail: "The connection broke after COMMIT was sent: all of it has taken effect, or none of it.",
			Hint:   "Read what would have changed, under a current grant, before you try again.",
		}, true
	case refused:
		p = problem{Type: code.Problem, Status: code.HTTPStatus, Code: code.SQLState, Hint: code.Hint, Detail: code.Err.Error()}
		p.Title = strings.ToUpper(p.Detail[:1]) + p.Detail[1:]
		p.addFacts(err)
		return p, true
	case errors.As(err, &invalid):
		return problem{
			Type: "invalid-input", Title: "Invalid input", Status: http.StatusBadRequest, Code: "invalid_input",
			Detail: invalid.Error(), Field: invalid.Field,
		}, true
	}
	return problem{}, false
}

// addFacts adds the fields of the refusal's type.
func (p *problem) addFacts(err error) {
	var (
		stale       *StaleError
		noGrant     *NoGrantError
		neverIssued *NeverIssuedError
		wrong       *WrongResourceError
		undrained   *UndrainedError
	)
	switch {
	case errors.As(err, &stale):
		p.Detail, p.Resource, p.Presented, p.Recorded = stale.Error(), stale.Resource, stale.Presented, stale.Recorded
	case errors.As(err, &noGrant):
		p.Detail, p.Needed = noGrant.Error(), noGrant.Needed
	case errors.As(err, &neverIssued):
		p.Detail, p.Resource, p.Presented, p.Recorded = neverIssued.Error(), neverIssued.Resource, neverIssued.Presented, neverIssued.Recorded
	case errors.As(err, &wrong):
		p.Detail, p.Resource, p.Needed = wrong.Error(), wrong.Resource, wrong.Needed
	case errors.As(err, &undrained):
		p.Detail, p.Resource = undrained.Error(), undrained.Resource
	}
}
