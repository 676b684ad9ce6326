package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// lease is the HTTP API's answer to an acquisition.
type lease struct {
	Resource string `json:"resource"`
	Token    string `json:"token"`
	Grant    string `json:"grant"`
	Handle   string `json:"handle"`

	keys principal
}

func (l lease) seal() string {
	_, seal, _ := strings.Cut(l.Grant, ".")
	return seal
}

// ask calls the API outside the transcript, and expects success.
func (w *world) ask(ctx context.Context, method, target, body string, into any) error {
	r, err := w.call(ctx, method, target, body, nil)
	if err != nil {
		return err
	}
	if r.status >= http.StatusBadRequest {
		return fmt.Errorf("%s %s: %d %s", method, target, r.status, r.body)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal([]byte(r.body), into)
}

// call calls the API. A nil header means a token and JSON.
func (w *world) call(ctx context.Context, method, target, body string, header map[string]string) (*reply, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://"+w.api, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.URL.Opaque = target
	if header == nil {
		header = apiHeader()
	}
	req.Header.Set("User-Agent", "golden")
	for name, value := range header {
		req.Header.Set(name, value)
	}
	sent, err := rawOf(req)
	if err != nil {
		return nil, err
	}
	return exchange(ctx, w.api, method, sent)
}

func apiHeader(more ...string) map[string]string {
	h := map[string]string{"Authorization": "Bearer " + bearer, "Content-Type": "application/json"}
	for i := 0; i+1 < len(more); i += 2 {
		h[more[i]] = more[i+1]
	}
	return h
}

// acquire takes a lease and its credentials.
func (w *world) acquire(ctx context.Context, resource string) (l lease, err error) {
	if err = w.ask(ctx, "POST", "/v1/leases", fmt.Sprintf(`{"resource":%q,"ttl":"5m","holder":"golden"}`, resource), &l); err != nil {
		return l, err
	}
	var c struct {
		Access  string `json:"access_key_id"`
		Secret  string `json:"secret_access_key"`
		Session string `json:"session_token"`
	}
	err = w.ask(ctx, "POST", "/v1/leases/credentials", fmt.Sprintf(`{"handle":%q}`, l.Handle), &c)
	l.keys = principal{name: "holder of " + l.Resource + " with token " + l.Token, access: c.Access, secret: c.Secret, session: c.Session}
	return l, err
}

// pair returns a stale and a current lease of a resource.
func (w *world) pair(ctx context.Context, resource string) (stale, current lease, err error) {
	if stale, err = w.acquire(ctx, resource); err != nil {
		return stale, current, err
	}
	if err = w.ask(ctx, "POST", "/v1/leases/release", fmt.Sprintf(`{"handle":%q}`, stale.Handle), nil); err != nil {
		return stale, current, err
	}
	current, err = w.acquire(ctx, resource)
	return stale, current, err
}

// bucket creates a bucket with a rule, and with keep unless that is empty.
func (w *world) bucket(ctx context.Context, name, rule, keep string) error {
	body := fmt.Sprintf(`{"rule":%q}`, rule)
	if keep != "" {
		body = fmt.Sprintf(`{"rule":%q,"keep":%q}`, rule, keep)
	}
	return w.ask(ctx, "PUT", "/v1/buckets/"+name, body, nil)
}

// apiTalk is a series of API calls in the transcript. The first error ends it: later calls are omitted.
type apiTalk struct {
	ctx context.Context
	w   *world
	b   *book
	err error
}

// do makes a call with a token and JSON.
func (t *apiTalk) do(method, target, body string) *reply {
	return t.with(apiHeader(), method, target, body)
}

// with makes a call with other headers.
func (t *apiTalk) with(header map[string]string, method, target, body string) *reply {
	if t.err != nil {
		return &reply{header: http.Header{}}
	}
	t.b.linef("=== %s %s", method, target)
	for _, name := range sorted(header) {
		if value := header[name]; value != apiHeader()[name] {
			t.b.linef("> %s: %s", name, value)
		}
	}
	for _, name := range sorted(apiHeader()) {
		if _, there := header[name]; !there {
			t.b.linef("> without %s", name)
		}
	}
	t.b.bodyLine(body)
	var r *reply
	if r, t.err = t.w.call(t.ctx, method, target, body, header); t.err != nil {
		return &reply{header: http.Header{}}
	}
	t.b.answer(r)
	return r
}

// lease reads a lease from an answer.
func (r *reply) lease() (l lease) {
	_ = json.Unmarshal([]byte(r.body), &l)
	return l
}
