package fence_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/fencegate/fencegate/fence"
)

// serve sends a request with these headers through the middleware, and returns the answer and the grant in its
// context.
func serve(t *testing.T, header http.Header, opts ...fence.HandlerOption) (answer *httptest.ResponseRecorder, seen *fence.Grant) {
	t.Helper()
	next := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if g, ok := fence.FromContext(r.Context()); ok {
			seen = &g
		}
		w.WriteHeader(http.StatusNoContent)
	})
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", http.NoBody)
	r.Header = header
	answer = httptest.NewRecorder()
	fence.Handler(next, opts...).ServeHTTP(answer, r)
	return answer, seen
}

func wantProblem(t *testing.T, answer *httptest.ResponseRecorder, status int, code string) map[string]any {
	t.Helper()
	var p map[string]any
	if err := json.Unmarshal(answer.Body.Bytes(), &p); err != nil {
		t.Fatalf("%v: %s", err, answer.Body)
	}
	if answer.Code != status || p["code"] != code || p["status"] != float64(status) || answer.Header().Get("Content-Type") != "application/problem+json" {
		t.Errorf("%d %v %v, want %d %s", answer.Code, answer.Header(), p, status, code)
	}
	return p
}

func TestTheHandlerReadsTheGrantOfARequest(t *testing.T) {
	t.Parallel()
	for _, resource := range []string{"orders/1001", "aufträge/50% von a b"} {
		g := fence.Grant{Resource: resource, Token: 34, Seal: fence.NewSeal()}
		header := http.Header{}
		fence.SetHeader(header, g)
		answer, seen := serve(t, header, fence.RequireGrant())
		if answer.Code != http.StatusNoContent || seen == nil || *seen != g {
			t.Errorf("%d, saw %v", answer.Code, seen)
		}
	}
}

func TestTheHandlerRefusesWhatIsMalformed(t *testing.T) {
	t.Parallel()
	secret := fence.NewSeal().Reveal()
	for name, header := range map[string]http.Header{
		"token only":        {fence.HeaderToken: {"34." + secret}},
		"resource only":     {fence.HeaderResource: {"a"}},
		"two tokens":        {fence.HeaderResource: {"a"}, fence.HeaderToken: {"34." + secret, "35." + secret}},
		"merged by a proxy": {fence.HeaderResource: {"a"}, fence.HeaderToken: {"34." + secret + ", 35." + secret}},
		"the same twice":    {fence.HeaderResource: {"a"}, fence.HeaderToken: {"34." + secret, "34." + secret}},
		"an empty token":    {fence.HeaderResource: {"a"}, fence.HeaderToken: {""}},
		"a space around":    {fence.HeaderResource: {"a"}, fence.HeaderToken: {" 34." + secret}},
		"not UTF-8":         {fence.HeaderResource: {"a%ff"}, fence.HeaderToken: {"34." + secret}},
		"a line break":      {fence.HeaderResource: {"a%0d%0ab"}, fence.HeaderToken: {"34." + secret}},
		"too long":          {fence.HeaderResource: {strings.Repeat("a", 513)}, fence.HeaderToken: {"34." + secret}},
		"two resources":     {fence.HeaderResource: {"a", "b"}, fence.HeaderToken: {"34." + secret}},
		"a bad encoding":    {fence.HeaderResource: {"a%2"}, fence.HeaderToken: {"34." + secret}},
		"a bad name":        {fence.HeaderResource: {"a%2A"}, fence.HeaderToken: {"34." + secret}},
		"a bad token":       {fence.HeaderResource: {"a"}, fence.HeaderToken: {"x." + secret}},
		"an over-long seal": {fence.HeaderResource: {"a"}, fence.HeaderToken: {"34." + secret + "0"}},
		"empty":             {fence.HeaderResource: {""}, fence.HeaderToken: {""}},
	} {
		answer, seen := serve(t, header)
		if seen != nil || strings.Contains(answer.Body.String(), secret) {
			t.Errorf("%s: saw %v, %s", name, seen, answer.Body)
		}
		if p := wantProblem(t, answer, http.StatusBadRequest, "invalid_input"); p["field"] == "" {
			t.Errorf("%s: %v", name, p)
		}
	}
}

func TestARequestWithoutAGrantPassesUnlessOneIsRequired(t *testing.T) {
	t.Parallel()
	if answer, seen := serve(t, http.Header{}); answer.Code != http.StatusNoContent || seen != nil {
		t.Errorf("%d, saw %v", answer.Code, seen)
	}
	answer, _ := serve(t, http.Header{}, fence.RequireGrant())
	wantProblem(t, answer, http.StatusPreconditionRequired, "ZF002")
}

func TestRefusalsBecomeProblems(t *testing.T) {
	t.Parallel()
	for _, code := range fence.Codes {
		err := fmt.Errorf("secret context: %w", fence.Refusal(code.SQLState, `{"resource": "r", "presented": "1", "recorded": "9007199254740993", "needed": "n"}`))
		answer := httptest.NewRecorder()
		if !fence.WriteProblem(answer, err) {
			t.Fatalf("%s: not written", code.SQLState)
		}
		p := wantProblem(t, answer, code.HTTPStatus, code.SQLState)
		if p["type"] != "urn:fencegate:problem:"+code.Problem || strings.Contains(answer.Body.String(), "secret") {
			t.Errorf("%s: %v", code.SQLState, p)
		}
		if code.SQLState == "ZF001" && (p["recorded"] != "9007199254740993" || p["resource"] != "r") {
			t.Errorf("facts: %v", p)
		}
	}
	answer := httptest.NewRecorder()
	fence.WriteProblem(answer, &fence.UnknownError{Err: errors.New("lost")})
	wantProblem(t, answer, http.StatusBadGateway, "unknown")
	for _, other := range []error{nil, errors.New("other")} {
		if answer := httptest.NewRecorder(); fence.WriteProblem(answer, other) || answer.Body.Len() > 0 {
			t.Errorf("%v was written", other)
		}
	}
}
