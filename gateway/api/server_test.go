package api_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/api"
	"github.com/fencegate/fencegate/wire"
)

func TestLeaseTravelsThroughItsHandle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakes()
		var held time.Duration
		s := newServer(t, f, func(c *api.Config) { c.Ended = func(d time.Duration, _ bool) { held = d } })
		var asked leasing.Request
		var wait time.Duration
		inner := f.acquire
		f.acquire = func(ctx context.Context, req leasing.Request) (leasing.Lease, error) {
			asked = req
			until, _ := ctx.Deadline()
			wait = time.Until(until)
			time.Sleep(2 * time.Second)
			return inner(ctx, req)
		}
		a := request(t, s, "POST", "/v1/leases", `{"resource":"orders/1001","ttl":"20s","wait":"5s","holder":"worker-a"}`)
		if want := (leasing.Request{Resource: "orders/1001", TTL: 20 * time.Second, Holder: "worker-a"}); !reflect.DeepEqual(asked, want) || wait != 5*time.Second {
			t.Errorf("asked for %+v, with a wait of %v; want %+v and 5s", asked, wait, want)
		}
		if a.status != http.StatusCreated || a.str("token") != "34" || a.str("grant") != "34."+seal.Reveal() || a.str("resource") != "orders/1001" {
			t.Errorf("acquire: %d %s", a.status, a.text)
		}
		if ttl, valid, elapsed := a.body["ttl_ms"], a.body["valid_ms"], a.body["elapsed_ms"]; ttl != 20000. || valid != 19999. || elapsed != 2000. {
			t.Errorf("ttl_ms %v, valid_ms %v, elapsed_ms %v", ttl, valid, elapsed)
		}
		if a.header.Get("Cache-Control") != "no-store" {
			t.Error("a grant may be cached")
		}
		handle := a.str("handle")
		raw, err := base64.RawURLEncoding.DecodeString(handle)
		if err != nil || strings.Contains(string(raw), seal.Reveal()) || strings.Contains(handle, seal.Reveal()) {
			t.Errorf("the handle holds the seal, or is no base64url: %v", err)
		}

		time.Sleep(time.Minute)
		renewed := request(t, s, "POST", "/v1/leases/renew", fmt.Sprintf(`{"handle":%q,"ttl":"10s"}`, handle))
		if renewed.status != http.StatusOK || f.renewed != 10*time.Second || renewed.str("token") != "34" || renewed.body["valid_ms"] != 10000. {
			t.Errorf("renew: %d %s, for %v", renewed.status, renewed.text, f.renewed)
		}
		if a := request(t, s, "POST", "/v1/leases/release", fmt.Sprintf(`{"handle":%q}`, handle)); a.status != http.StatusNoContent || a.text != "" {
			t.Errorf("release: %d %s", a.status, a.text)
		}
		if held != time.Minute {
			t.Errorf("the lease was held for %v, says its handle", held)
		}
		if got, want := <-f.released, (leasing.Ref{Resource: "orders/1001", Owner: "0123456789abcdef", Token: 34}); got != want {
			t.Errorf("released %+v, want %+v", got, want)
		}
	})
}

// bad is one malformed request and the field that the answer must name.
type bad struct {
	name, path, body string
	headers          []string
	status           int
	code, field      string
}

func badLeases() []bad {
	long := strings.Repeat("x", fence.MaxResourceBytes+1)
	leases := func(name, body, field string) bad {
		return bad{name: name, path: "/v1/leases", body: body, status: 400, code: "invalid_input", field: field}
	}
	return []bad{
		leases("resource missing", `{}`, "resource"),
		leases("resource empty", `{"resource":""}`, "resource"),
		leases("resource too long", `{"resource":"`+long+`"}`, "resource"),
		leases("resource with a control character", `{"resource":"a\u0007b"}`, "resource"),
		leases("resource with a star", `{"resource":"orders/*"}`, "resource"),
		leases("resource in invalid UTF-8", "{\"resource\":\"a\xffb\"}", "body"),
		leases("resource of another type", `{"resource":7}`, "body"),
		leases("ttl zero", `{"resource":"a","ttl":"0s"}`, "ttl"),
		leases("ttl negative", `{"resource":"a","ttl":"-1s"}`, "ttl"),
		leases("ttl over the maximum", `{"resource":"a","ttl":"301s"}`, "ttl"),
		leases("ttl empty", `{"resource":"a","ttl":""}`, "ttl"),
		leases("ttl without a unit", `{"resource":"a","ttl":"30"}`, "ttl"),
		leases("ttl a number", `{"resource":"a","ttl":30}`, "body"),
		leases("wait negative", `{"resource":"a","wait":"-1s"}`, "wait"),
		leases("wait over the maximum", `{"resource":"a","wait":"301s"}`, "wait"),
		leases("holder too long", `{"resource":"a","holder":"`+long+`"}`, "holder"),
		leases("holder with a control character", `{"resource":"a","holder":"a\nb"}`, "holder"),
		leases("unknown field", `{"resource":"a","lease":"x"}`, "body"),
		leases("data behind", `{"resource":"a"} {}`, "body"),
		leases("brace behind", `{"resource":"a"}}`, "body"),
		leases("cut short", `{"resource":"a"`, "body"),
		leases("no JSON", `resource=a`, "body"),
		leases("an array", `[]`, "body"),
		leases("half a surrogate pair", `{"resource":"a\ud800b"}`, "body"),
		leases("the other half", `{"resource":"a\uDC00b"}`, "body"),
		leases("two first halves", `{"resource":"\ud800\ud800\udc00"}`, "body"),
		leases("half a pair before another escape", `{"resource":"\ud83d\n"}`, "body"),
		leases("half a pair in a name", `{"\ud800":1}`, "body"),
		leases("empty", ` `, "body"),
		{name: "another content type", path: "/v1/leases", body: `{"resource":"a"}`, headers: []string{"Content-Type", "text/plain"}, status: 400, code: "invalid_input", field: "Content-Type"},
		{name: "body over the limit", path: "/v1/leases", body: `{"resource":"` + strings.Repeat("x", 1<<20) + `"}`, status: 413, code: "too_large"},
		{name: "renew without a handle", path: "/v1/leases/renew", body: `{"ttl":"30s"}`, status: 400, code: "invalid_input", field: "handle"},
		{name: "renew with garbage", path: "/v1/leases/renew", body: `{"handle":"garbage"}`, status: 400, code: "invalid_input", field: "handle"},
		{name: "renew with ttl zero", path: "/v1/leases/renew", body: `{"handle":"x","ttl":"0s"}`, status: 400, code: "invalid_input", field: "ttl"},
		{name: "release with garbage", path: "/v1/leases/release", body: `{"handle":"!!"}`, status: 400, code: "invalid_input", field: "handle"},
		{name: "release with a ttl", path: "/v1/leases/release", body: `{"handle":"x","ttl":"1s"}`, status: 400, code: "invalid_input", field: "body"},
		{name: "credentials with garbage", path: "/v1/leases/credentials", body: `{"handle":"AAAA"}`, status: 400, code: "invalid_input", field: "handle"},
	}
}

func badSQL() []bad {
	sealText := strings.Repeat("a", 32)
	with := func(name, resource, token, field string) bad {
		return bad{
			name: name, path: "/v1/sql", body: `{"statements":[{"sql":"SELECT 1"}]}`,
			headers: []string{fence.HeaderResource, resource, fence.HeaderToken, token}, status: 400, code: "invalid_input", field: field,
		}
	}
	return []bad{
		with("token 0", "a", "0", "token"),
		with("token negative", "a", "-1."+sealText, "token"),
		with("token not a number", "a", "x."+sealText, "token"),
		with("token with a leading zero", "a", "034."+sealText, "token"),
		with("token over int64", "a", "9223372036854775808."+sealText, "token"),
		with("token empty", "a", "", "token"),
		with("seal too short", "a", "34.abc", "seal"),
		with("seal not hexadecimal", "a", "34."+strings.Repeat("z", 32), "seal"),
		with("seal in upper case", "a", "34."+strings.Repeat("A", 32), "seal"),
		with("seal empty", "a", "34.", "seal"),
		with("resource empty", "", "34."+sealText, "resource"),
		with("resource with a control character", "a%00", "34."+sealText, "resource"),
		with("resource in invalid UTF-8", "a%FF", "34."+sealText, "resource"),
		with("resource ends in its encoding", "a%2", "34."+sealText, "resource"),
		with("resource too long", strings.Repeat("x", fence.MaxResourceBytes+1), "34."+sealText, "resource"),
		{name: "no grant", path: "/v1/sql", body: `{"statements":[{"sql":"SELECT 1"}]}`, status: 428, code: "ZF002"},
		{name: "no token", path: "/v1/sql", body: `{"statements":[{"sql":"SELECT 1"}]}`, headers: []string{fence.HeaderResource, "a"}, status: 400, code: "invalid_input", field: fence.HeaderToken},
		{name: "no resource", path: "/v1/sql", body: `{"statements":[{"sql":"SELECT 1"}]}`, headers: []string{fence.HeaderToken, "1"}, status: 400, code: "invalid_input", field: fence.HeaderResource},
		{name: "no statements", path: "/v1/sql", body: `{"statements":[]}`, status: 400, code: "invalid_input", field: "statements"},
		{name: "too many statements", path: "/v1/sql", body: `{"statements":[` + strings.Repeat(`{"sql":"x"},`, 100) + `{"sql":"x"}]}`, status: 400, code: "invalid_input", field: "statements"},
		{name: "unknown field in a statement", path: "/v1/sql", body: `{"statements":[{"sql":"SELECT 1","params":[]}]}`, status: 400, code: "invalid_input", field: "body"},
		{name: "SQL body over the limit", path: "/v1/sql", body: `{"statements":[{"sql":"` + strings.Repeat("x", 1<<20) + `"}]}`, status: 413, code: "too_large"},
	}
}

func TestMalformedInputIsRefusedByName(t *testing.T) {
	t.Parallel()
	f := newFakes()
	f.acquire = func(context.Context, leasing.Request) (leasing.Lease, error) {
		t.Error("malformed input reached the lock")
		return leasing.Lease{}, errors.New("no")
	}
	s := newServer(t, f)
	for _, c := range append(badLeases(), badSQL()...) {
		a := request(t, s, "POST", c.path, c.body, c.headers...)
		if a.status != c.status || a.str("code") != c.code || a.str("field") != c.field {
			t.Errorf("%s: %d %s; want %d %s field %q", c.name, a.status, a.text, c.status, c.code, c.field)
		}
		if a.header.Get("Content-Type") != "application/problem+json" || a.str("type") == "" || a.str("title") == "" || a.body["status"] != float64(a.status) {
			t.Errorf("%s: no problem details: %v %s", c.name, a.header, a.text)
		}
	}
	if f.ran != nil {
		t.Error("malformed SQL reached the database")
	}
}

func TestErrorsAreProblemsWithTheirFacts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err    error
		status int
		want   map[string]any // members that the problem must have
	}{
		"stale":          {&fence.StaleError{Resource: "a", Presented: 34, Recorded: 35}, 412, map[string]any{"code": "ZF001", "type": "urn:fencegate:problem:stale", "resource": "a", "presented": "34", "recorded": "35"}},
		"never issued":   {&fence.NeverIssuedError{Resource: "a", Presented: 34}, 403, map[string]any{"code": "ZF003", "presented": "34", "recorded": nil}},
		"wrong resource": {&api.StatementError{Index: 1, Cause: &fence.WrongResourceError{Resource: "a", Needed: "b"}}, 403, map[string]any{"code": "ZF004", "needed": "b", "statement": 1.}},
		"undrained":      {&fence.UndrainedError{Resource: "a", Detail: "gid x"}, 503, map[string]any{"code": "ZF005"}},
		"held":           {&leasing.HeldError{Resource: "a", Holder: "worker-b", RetryAfter: 1500 * time.Millisecond}, 409, map[string]any{"code": "held", "retry_after_ms": 1500., "resource": "a", "holder": "worker-b"}},
		"held by some":   {&leasing.HeldError{Resource: "a"}, 409, map[string]any{"code": "held", "holder": nil}},
		"no PostgreSQL":  {&leasing.UnavailableError{Part: "postgresql", Cause: fmt.Errorf("secret: %w", fence.ErrUnknown)}, 503, map[string]any{"code": "unavailable", "part": "postgresql", "hint": "Whether it was done is unknown. Look, then try again later."}},
		"no Redis":       {&leasing.UnavailableError{Part: "redis"}, 503, map[string]any{"code": "unavailable", "part": "redis", "hint": "Nothing was done. Try again later."}},
		"lost":           {fmt.Errorf("x: %w", leasing.ErrLost), 410, map[string]any{"code": "lease_lost"}},
		"SQL error":      {&api.StatementError{Index: 2, SQLState: "23505", Message: "duplicate", Position: 7}, 422, map[string]any{"code": "sql_error", "sqlstate": "23505", "statement": 2., "position": 7.}},
		"failed COMMIT":  {&api.StatementError{Index: -1, SQLState: "23503"}, 422, map[string]any{"sqlstate": "23503", "statement": nil}},
		"unknown":        {fmt.Errorf("commit: %w", fence.ErrUnknown), 502, map[string]any{"code": "unknown"}},
		"too large":      {&api.TooLargeError{What: "the result", Limit: 5}, 413, map[string]any{"code": "too_large"}},
		"not found":      {api.ErrNotFound, 404, map[string]any{"code": "not_found"}},
		"not there":      {api.ErrNotImplemented, 501, map[string]any{"code": "not_implemented"}},
		"anything else":  {errors.New("password=secret"), 500, map[string]any{"code": "internal"}},
	} {
		f := newFakes()
		f.err = c.err
		a := send(t, newServer(t, f), "POST", "/v1/sql", `{"statements":[{"sql":"x"}]}`, fence.HeaderResource, "a", fence.HeaderToken, "34."+seal.Reveal())
		if a.status != c.status {
			t.Errorf("%s: %d, want %d", name, a.status, c.status)
		}
		for member, want := range c.want {
			if a.body[member] != want {
				t.Errorf("%s: %s is %v, want %v: %s", name, member, a.body[member], want, a.text)
			}
		}
		if strings.Contains(a.text, "secret") || strings.Contains(a.text, seal.Reveal()) {
			t.Errorf("%s: the answer shows a secret: %s", name, a.text)
		}
		if name == "held" && a.header.Get("Retry-After") != "2" {
			t.Errorf("Retry-After: %q, want 2", a.header.Get("Retry-After"))
		}
	}
}

// A release ends the grant before it asks the nodes, and a renewal may have reached some of them.
func TestARequestOfALeaseThatWasHalfDoneIsNotToldAsUndone(t *testing.T) {
	t.Parallel()
	for path, hint := range map[string]string{
		"/v1/leases/release": "The grant may have ended already. Release again; otherwise the lock ends at its TTL.",
		"/v1/leases/renew":   "The lease may end at its old deadline. Try again before that.",
	} {
		f := newFakes()
		s := newServer(t, f)
		handle := aHandle(t, s)
		f.err = leasing.ErrUnavailable
		a := request(t, s, "POST", path, `{"handle":"`+handle+`"}`)
		if a.status != http.StatusServiceUnavailable || a.str("part") != "redis" || a.str("hint") != hint {
			t.Errorf("%s: %d %s", path, a.status, a.text)
		}
	}
}

// For a lease that the lock no longer has, the fence says what happened.
func TestALostLeaseSaysWhy(t *testing.T) {
	t.Parallel()
	ended := time.Unix(1700000000, 0)
	for want, record := range map[string]fence.Record{
		"the lease is lost: its resource was revoked":                {Token: 35, Holder: "revoked by ops"},
		"the lease is lost: another has acquired the resource since": {Token: 35, Holder: "worker-b"},
		"the lease is lost: it was released, or ran out":             {Token: 34, Holder: "worker-a", EndedAt: &ended},
		"the lease is lost: it ran out":                              {Token: 34, Holder: "worker-a"},
		"the lease is lost":                                          {Token: 33}, // PostgreSQL has forgotten fences
	} {
		f := newFakes()
		s := newServer(t, f)
		handle := request(t, s, "POST", "/v1/leases", `{"resource":"orders/1001"}`).str("handle")
		f.record, f.err = record, leasing.ErrLost
		a := request(t, s, "POST", "/v1/leases/renew", fmt.Sprintf(`{"handle":%q}`, handle))
		recorded := map[bool]string{true: "35"}[record.Token == 35]
		if a.status != http.StatusGone || a.str("code") != "lease_lost" || a.str("detail") != want || a.str("recorded") != recorded {
			t.Errorf("want %q: %d %s", want, a.status, a.text)
		}
	}
}

func TestGrantAndStatementsReachTheDatabaseUnchanged(t *testing.T) {
	t.Parallel()
	f := newFakes()
	f.results = []wire.Result{{Columns: []wire.Column{{Name: "n", Type: "int8"}}, Rows: []json.RawMessage{json.RawMessage(`["9007199254740993"]`)}, Command: "SELECT 1", RowsAffected: 1}}
	s := newServer(t, f)
	a := request(t, s, "POST", "/v1/sql", `{"statements":[{"sql":"SELECT $1","args":[9007199254740993, 1.10, "<&>", null]}]}`,
		fence.HeaderResource, "caf%C3%A9/1%25", fence.HeaderToken, "34."+seal.Reveal())
	if want := (fence.Grant{Resource: "café/1%", Token: 34, Seal: seal}); f.grant != want {
		t.Errorf("grant %v, want %v", f.grant, want)
	}
	if got := fmt.Sprintf("%s", f.ran[0].Args); got != `[9007199254740993 1.10 "<&>" null]` {
		t.Errorf("arguments %s", got)
	}
	if want := `{"results":[{"columns":[{"name":"n","type":"int8"}],"rows":[["9007199254740993"]],"rows_affected":1,"command":"SELECT 1"}]}` + "\n"; a.text != want {
		t.Errorf("answer %s, want %s", a.text, want)
	}
}

func TestResourceNamesSurviveThePath(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"orders/1001", "a//b", "a b", "a%b", "a/../b", "café", "a+b?c#d", "/"} {
		f := newFakes()
		f.record.Resource = name
		a := request(t, newServer(t, f), "GET", "/v1/resources/"+fence.EscapeResource(name), "")
		if a.status != http.StatusOK || a.str("resource") != name || a.str("token") != "34" || a.body["locked"] != true {
			t.Errorf("%q: %d %s", name, a.status, a.text)
		}
	}
	f := newFakes()
	a := request(t, newServer(t, f), "GET", "/v1/resources/a", "")
	want := `"lock":{"holder":"worker-a","token":"34","ttl_ms":1500,"waiters":2,"servers":[` +
		`{"name":"node-1","locked":true,"holder":"worker-a","token":"34","ttl_ms":null,"waiters":2,"error":null},` +
		`{"name":"node-2","locked":false,"holder":"","token":null,"ttl_ms":null,"waiters":0,"error":"away"}]}`
	if !strings.Contains(a.text, want) {
		t.Errorf("answer %s, want %s in it", a.text, want)
	}
	f.lockErr = errors.New("no quorum")
	if a := request(t, newServer(t, f), "GET", "/v1/resources/a", ""); a.status != http.StatusOK || a.body["locked"] != nil {
		t.Errorf("without Redis: %d %s; want the fence's record with locked null", a.status, a.text)
	}
	for _, path := range []string{"/v1/resources/", "/v1/resources/a%2A"} {
		if a := request(t, newServer(t, f), "GET", path, ""); a.status != 400 || a.str("field") != "resource" {
			t.Errorf("%s: %d %s", path, a.status, a.text)
		}
	}
}

func TestUnknownPathsAndMethodsAreProblems(t *testing.T) {
	t.Parallel()
	s := newServer(t, newFakes())
	for path, want := range map[string]int{"/page": 404, "/v1/nothing": 404, "/v2/leases": 404, "/v1/leases": 405} {
		if a := request(t, s, "GET", path, ""); a.status != want || a.header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("GET %s: %d %s, want %d", path, a.status, a.text, want)
		}
	}
}

func TestPartsThatAreNotThereAnswerNotImplemented(t *testing.T) {
	t.Parallel()
	s := newServer(t, newFakes(), func(c *api.Config) { c.SQL, c.Credentials, c.Buckets = nil, nil, nil })
	handle := aHandle(t, s)
	for path, body := range map[string]string{
		"POST /v1/sql":                `{"statements":[{"sql":"x"}]}`,
		"POST /v1/leases/credentials": fmt.Sprintf(`{"handle":%q}`, handle),
		"PUT /v1/buckets/orders":      `{"rule":"key"}`,
		"GET /metrics":                "",
	} {
		method, path, _ := strings.Cut(path, " ")
		if a := request(t, s, method, path, body); a.status != http.StatusNotImplemented {
			t.Errorf("%s %s: %d %s", method, path, a.status, a.text)
		}
	}
}

func TestReadinessNamesThePartThatIsAway(t *testing.T) {
	t.Parallel()
	var redis error
	s := newServer(t, newFakes(), func(c *api.Config) {
		c.BearerToken = "t" // health needs none
		c.Checks = []api.Check{
			{Part: "postgresql", Run: func(context.Context) error { return nil }},
			{Part: "redis", Run: func(context.Context) error { return redis }},
		}
	})
	if a := request(t, s, "GET", "/readyz", ""); a.status != http.StatusOK {
		t.Errorf("ready: %d %s", a.status, a.text)
	}
	redis = errors.New("no quorum")
	if a := request(t, s, "GET", "/readyz", ""); a.status != http.StatusServiceUnavailable || a.str("part") != "redis" {
		t.Errorf("without Redis: %d %s", a.status, a.text)
	}
	if a := request(t, s, "GET", "/healthz", ""); a.status != http.StatusOK {
		t.Errorf("health: %d %s", a.status, a.text)
	}
}

// ofPage reports whether a path belongs to the live page, which has no bearer token: see page_test.go.
func ofPage(path string) bool { return path == "/" || strings.HasPrefix(path, "/page/") }

func TestDocumentDescribesExactlyTheRoutes(t *testing.T) {
	t.Parallel()
	s := newServer(t, newFakes())
	a := request(t, s, "GET", "/openapi.json", "")
	documented := map[string]bool{}
	for path, methods := range a.body["paths"].(map[string]any) {
		for method := range methods.(map[string]any) {
			documented[strings.ToUpper(method)+" "+path] = true
		}
	}
	routed := map[string]bool{}
	for _, r := range s.Handler().(*echo.Echo).Routes() {
		path := strings.NewReplacer("/*", "/{resource}", ":bucket", "{bucket}", ":session", "{session}").Replace(r.Path)
		if r.Method == http.MethodPost && strings.HasSuffix(path, "{resource}") {
			path += "/revoke"
		}
		if !ofPage(path) {
			routed[r.Method+" "+path] = true
		}
	}
	if !maps.Equal(documented, routed) {
		t.Errorf("documented %v\nrouted     %v", slices.Sorted(maps.Keys(documented)), slices.Sorted(maps.Keys(routed)))
	}
}
