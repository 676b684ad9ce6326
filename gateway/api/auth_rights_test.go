package api_test

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/gateway/activity"
	"github.com/fencegate/fencegate/gateway/api"
	"github.com/fencegate/fencegate/wire"
)

const (
	mine   = "orders/1001" // the resource of the rights in the matrix
	others = "stock/7"
)

// endpoint is a row of the matrix: a request and the right that it needs.
type endpoint struct {
	route string // echo's name
	path  string // "": the route's
	body  string // %H is the handle of an own lease, %O of another's
	grant string // presented for the resource
	verb  access.Verb
	what  string // "": the verb is about the resource; else "gateway", or "some": any resource is enough
}

const (
	public   = access.Verb("public")   // needs no token
	anyToken = access.Verb("anyToken") // needs only a token
	nobody   = access.Verb("nobody")
	gateway  = "gateway"
	some     = "some"
)

// matrix returns every endpoint; the test below fails if one is missing.
func matrix() []endpoint {
	sealed := "34." + seal.Reveal()
	return []endpoint{
		{route: "GET /healthz", verb: public},
		{route: "GET /readyz", verb: public},
		{route: "GET /openapi.json", verb: public},
		{route: "GET /metrics", verb: access.Metrics, what: gateway},
		{route: "POST /v1/leases", body: `{"resource":"orders/1001"}`, verb: access.Acquire},
		{route: "POST /v1/leases/all", body: `{"resources":["orders/1001"]}`, verb: access.Acquire},
		{route: "POST /v1/leases/renew", body: `{"handle":"%H"}`, verb: access.Acquire},
		{route: "POST /v1/leases/renew", body: `{"handle":"%O"}`, verb: access.Manage},
		{route: "POST /v1/leases/release", body: `{"handle":"%H"}`, verb: access.Acquire},
		{route: "POST /v1/leases/release", body: `{"handle":"%O"}`, verb: access.Manage},
		{route: "POST /v1/leases/credentials", body: `{"handle":"%H"}`, verb: access.Acquire},
		{route: "POST /v1/leases/credentials", body: `{"handle":"%O"}`, verb: nobody},
		{route: "GET /v1/resources", verb: access.Inspect, what: some},
		{route: "GET /v1/resources/*", path: "/v1/resources/" + mine, verb: access.Inspect},
		{route: "POST /v1/resources/*", path: "/v1/resources/" + mine + "/revoke", body: `{}`, verb: access.Revoke},
		{route: "GET /v1/endpoints", verb: anyToken},
		{route: "GET /v1/buckets", verb: access.Buckets, what: gateway},
		{route: "GET /v1/buckets/:bucket", path: "/v1/buckets/a", verb: access.Buckets, what: gateway},
		{route: "PUT /v1/buckets/:bucket", path: "/v1/buckets/a", body: `{"rule":"key"}`, verb: access.Buckets, what: gateway},
		{route: "PUT /v1/buckets/:bucket/rules", path: "/v1/buckets/a/rules", body: `{"prefix":"a","rule":"key"}`, verb: access.Buckets, what: gateway},
		{route: "DELETE /v1/buckets/:bucket/rules", path: "/v1/buckets/a/rules?prefix=a", verb: access.Buckets, what: gateway},
		{route: "POST /v1/sql", body: `{"statements":[{"sql":"SELECT 1"}]}`, grant: sealed, verb: access.SQL},
		{route: "POST /v1/sql", body: `{"statements":[{"sql":"SELECT 1"}]}`, grant: "34", verb: access.SQL},
		{route: "POST /v1/check", grant: sealed, verb: access.Acquire},
		{route: "POST /v1/check", grant: "34", verb: access.SQL}, // a bare token raises the fence
		{route: "GET /v1/events", path: "/v1/events?follow=false", verb: access.Inspect, what: some},
		{route: "GET /v1/status", verb: access.Inspect, what: some},
		{route: "GET /v1/sessions", verb: access.Sessions, what: gateway},
		{route: "POST /v1/sessions/:session/end", path: "/v1/sessions/1/end", body: `{}`, verb: access.Sessions, what: gateway},
	}
}

// holding returns a server with a principal "me", whose token "me" has these rights, and replacements for the handles
// in requests.
func holding(t *testing.T, rules ...access.Rule) (s *api.Server, all *access.Principals, handles *strings.Replacer) {
	t.Helper()
	define := func(name string, rules ...access.Rule) access.Definition {
		return access.Definition{Name: name, Tokens: []access.Digest{access.DigestOf(name)}, Issued: claiming(name), Rules: rules}
	}
	acquires := access.Rule{Resources: "*", Verbs: []access.Verb{access.Acquire}}
	all, err := access.New([]access.Definition{define("me", acquires), define("another", acquires)}, access.VerifiedBy(provider(time.Hour)))
	if err != nil {
		t.Fatal(err)
	}
	feed := activity.New(activity.Config{})
	t.Cleanup(feed.Close)
	f := newFakes()
	s = newServer(t, f, func(c *api.Config) {
		c.Principals, c.Events, c.Sessions = all, feed, noSessions{}
		c.Metrics = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
		c.BearerToken = "the gateway's"
	})
	handle := func(of string) string {
		a := request(t, s, "POST", "/v1/leases", fmt.Sprintf(`{"resource":%q}`, mine), "Authorization", "Bearer "+of)
		if a.status != http.StatusCreated {
			t.Fatalf("acquire: %d %s", a.status, a.text)
		}
		return a.str("handle")
	}
	handles = strings.NewReplacer("%H", handle("me"), "%O", handle("another"))
	if _, err := all.Replace([]access.Definition{define("me", rules...), define("another", acquires)}, access.VerifiedBy(provider(time.Hour))); err != nil {
		t.Fatal(err)
	}
	return s, all, handles
}

func (e endpoint) ask(t *testing.T, s *api.Server, handles *strings.Replacer, headers ...string) answer {
	t.Helper()
	method, path, _ := strings.Cut(e.route, " ")
	if e.path != "" {
		path = e.path
	}
	if e.grant != "" {
		headers = append(headers, fence.HeaderResource, mine, fence.HeaderToken, e.grant)
	}
	return request(t, s, method, path, handles.Replace(e.body), headers...)
}

// Each endpoint accepts only its own right.
func TestEveryEndpointNeedsItsRightAndNoOther(t *testing.T) {
	t.Parallel()
	for _, v := range access.Verbs() {
		for _, about := range []string{mine, "orders/*", others, "stock/*", ""} {
			if v.OfGateway() != (about == "") {
				continue
			}
			if v == access.S3Read {
				about = access.Everything
			}
			s, _, handles := holding(t, access.Rule{Resources: about, Verbs: []access.Verb{v}})
			for _, e := range matrix() {
				fits := e.what != "" || about == mine || about == "orders/*"
				allowed := e.verb == public || e.verb == anyToken || e.verb == v && fits
				for _, token := range []string{"me", "jwt.of.me"} {
					a := e.ask(t, s, handles, "Authorization", "Bearer "+token)
					if denied := a.status == http.StatusForbidden && a.str("code") == "denied"; denied == allowed || a.status == http.StatusUnauthorized {
						t.Errorf("%s: %s %s with %s on %q: %d %s; allowed should be %v", token, e.route, e.body+e.grant, v, about, a.status, a.text, allowed)
					} else if !denied && a.status >= 300 && a.status != http.StatusNotFound {
						t.Errorf("%s: %s with %s on %q: %d %s: the request itself is wrong", token, e.route, v, about, a.status, a.text)
					}
				}
			}
		}
	}
}

func TestTheMatrixHasEveryEndpoint(t *testing.T) {
	t.Parallel()
	known, routed := map[string]bool{}, map[string]bool{}
	for _, e := range matrix() {
		known[e.route] = true
	}
	for _, r := range newServer(t, newFakes()).Handler().(*echo.Echo).Routes() {
		if !ofPage(r.Path) {
			routed[r.Method+" "+r.Path] = true
		}
	}
	if !maps.Equal(known, routed) {
		t.Errorf("in the matrix %v\nrouted        %v", slices.Sorted(maps.Keys(known)), slices.Sorted(maps.Keys(routed)))
	}
}

// Neither another header nor the gateway's own token admits a request.
func TestOnlyAPrincipalsTokenIsHeard(t *testing.T) {
	t.Parallel()
	s, _, handles := holding(t, access.Rule{Resources: "*", Verbs: access.Verbs()})
	for _, headers := range [][]string{
		nil,
		{"Authorization", "Bearer nobody"},
		{"Authorization", "Bearer jwt.of.nobody"},
		{"Authorization", "Bearer jwt.of."},
		{"Authorization", "Bearer the gateway's"},
		{"Authorization", "Bearer "},
		{"Authorization", "Basic me"},
		{"Authorization", "me"},
		{"X-Forwarded-User", "me"},
		{"X-Remote-User", "me", "X-Forwarded-For", "127.0.0.1", "Forwarded", "for=127.0.0.1"},
		{"X-Forwarded-Client-Cert", "Subject=\"CN=me\""},
		{"Cookie", "token=me"},
	} {
		for _, e := range matrix() {
			if a := e.ask(t, s, handles, headers...); (a.status == http.StatusUnauthorized) == (e.verb == public) {
				t.Errorf("%s with %q: %d %s", e.route, headers, a.status, a.text)
			}
		}
	}
}

type noSessions struct{ api.Sessions }

func (noSessions) List() []wire.Session { return nil }
func (noSessions) End(string) bool      { return false }
