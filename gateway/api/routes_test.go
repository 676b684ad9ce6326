package api_test

import (
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/gateway/api"
)

// routeOf returns the call of a request; ok is false if the API has none.
func routeOf(method, path string) (route api.Route, ok bool) {
	path, _, _ = strings.Cut(path, "?")
	for _, r := range api.Routes() {
		pattern := regexp.MustCompile(`\{\w+\}`).ReplaceAllString(strings.ReplaceAll(r.Path, "{resource}", ".+"), "[^/]+")
		if r.Method == method && regexp.MustCompile("^"+pattern+"$").MatchString(path) {
			return r, true
		}
	}
	return route, false
}

// inTheTable fails if an answer is not one of its route's. Each request of this package's tests passes through it.
func inTheTable(t *testing.T, method, path string, a answer) {
	t.Helper()
	r, ok := routeOf(method, path)
	switch {
	case !ok:
		return
	case slices.Contains(r.Status, a.status):
		if r.Answer != nil && r.Media == "" {
			hasFields(t, method+" "+r.Path, a.body, reflect.TypeOf(r.Answer))
		}
		return
	}
	code := a.str("code")
	if !slices.Contains(append(r.CommonCodes(), r.Codes...), code) {
		t.Errorf("%s %s answers %d %s, which its route does not say: %s", method, r.Path, a.status, code, a.text)
	}
	if api.StatusOf(code) != a.status {
		t.Errorf("%s %s answers %d with %s, whose status is %d", method, r.Path, a.status, code, api.StatusOf(code))
	}
}

// hasFields wants an answer to have the fields of its type, from which openapi.json is generated.
func hasFields(t *testing.T, call string, body map[string]any, answer reflect.Type) {
	t.Helper()
	extra := maps.Clone(body)
	for _, f := range reflect.VisibleFields(answer) {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if _, ok := body[name]; !ok && name != "" && name != "-" && options != "omitempty" {
			t.Errorf("%s answers without %s", call, name)
		}
		delete(extra, name)
	}
	for name := range extra {
		t.Errorf("%s answers %s, which %v does not have", call, name, answer)
	}
}

func TestEachRouteSaysWhatItDoesAndAnswersKnownCodes(t *testing.T) {
	t.Parallel()
	for _, r := range api.Routes() {
		if r.Does == "" || len(r.Status) == 0 {
			t.Errorf("%s %s does not say what it does, or answers", r.Method, r.Path)
		}
		if r.Open && len(r.Rights) > 0 || r.Gateway && len(r.Rights) != 1 {
			t.Errorf("%s %s: open %v, of the gateway %v, rights %v", r.Method, r.Path, r.Open, r.Gateway, r.Rights)
		}
		for _, code := range append(r.CommonCodes(), r.Codes...) {
			if api.StatusOf(code) == 0 {
				t.Errorf("%s %s answers the unknown code %s", r.Method, r.Path, code)
			}
		}
	}
}

// The matrix of access_test.go tries each endpoint with each right.
func TestTheRightsOfRoutesAreThoseOfTheMatrix(t *testing.T) {
	t.Parallel()
	type rights map[access.Verb]bool
	said, held := map[string]rights{}, map[string]rights{}
	note := func(all map[string]rights, route string, v access.Verb) {
		if all[route] == nil {
			all[route] = rights{}
		}
		all[route][v] = true
	}
	for _, r := range api.Routes() {
		path := regexp.MustCompile(`\{(\w+)\}`).ReplaceAllString(regexp.MustCompile(`\{resource\}.*`).ReplaceAllString(r.Path, "*"), ":$1")
		switch {
		case r.Open:
			note(said, r.Method+" "+path, public)
		case len(r.Rights) == 0:
			note(said, r.Method+" "+path, anyToken)
		}
		for _, v := range r.Rights {
			note(said, r.Method+" "+path, v)
		}
	}
	for _, e := range matrix() {
		if e.verb != nobody {
			note(held, e.route, e.verb)
		}
	}
	for _, route := range slices.Sorted(maps.Keys(held)) {
		if !maps.Equal(said[route], held[route]) {
			t.Errorf("%s: the route says %v, the matrix has %v", route, said[route], held[route])
		}
	}
	if len(said) != len(held) {
		t.Errorf("%d routes, %d in the matrix", len(said), len(held))
	}
}
