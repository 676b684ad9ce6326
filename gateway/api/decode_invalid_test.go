package api_test

import (
	"net/http"
	"strings"
	"testing"
)

// A name that PostgreSQL cannot store is an error of the client and must not be retried. A malformed query is refused,
// because half of it would be another question.
func TestOddNamesAndQueriesAreInvalidInput(t *testing.T) {
	t.Parallel()
	s := newServer(t, newFakes())
	for _, path := range []string{
		"GET /v1/buckets/%00", "GET /v1/buckets/a%FF", "GET /v1/buckets/" + strings.Repeat("a", 1025),
		"PUT /v1/buckets/a%00", "PUT /v1/buckets/%ff/rules", "DELETE /v1/buckets/%00/rules?prefix=a",
		"DELETE /v1/buckets/b/rules?prefix=%00", "DELETE /v1/buckets/b/rules?prefix=%ff", "DELETE /v1/buckets/b/rules?prefix=a&x=%zz",
		"GET /v1/buckets?after=%00", "GET /v1/buckets?after=%ff", "GET /v1/buckets?after=a;limit=1", "GET /v1/buckets?after=%zz",
		"GET /v1/resources?prefix=a;b", "GET /v1/resources?prefix=orders/&after=%",
	} {
		method, path, _ := strings.Cut(path, " ")
		body := ""
		if method == "PUT" {
			body = `{"rule":"none"}`
			if strings.HasSuffix(path, "/rules") {
				body = `{"prefix":"a","rule":"none"}`
			}
		}
		if a := request(t, s, method, path, body); a.status != http.StatusBadRequest || a.str("code") != "invalid_input" || a.str("field") == "" {
			t.Errorf("%s %.40s: %d %s", method, path, a.status, a.text)
		}
	}
}

func TestABodyOfAnotherTypeIsToldWhichTypeIsNeeded(t *testing.T) {
	t.Parallel()
	s := newServer(t, newFakes())
	for _, c := range []struct{ path, body, says string }{
		{"/v1/leases", `{"resource":1}`, `has a number where "resource" needs a string`},
		{"/v1/leases", `{"resource":"a","ttl":30}`, `has a number where "ttl" needs a string`},
		{"/v1/leases/all", `{"resources":"a"}`, `has a string where "resources" needs a list`},
		{"/v1/leases", `null`, "is a JSON null; an object is expected"},
		{"/v1/leases", ` null `, "is a JSON null; an object is expected"},
		{"/v1/leases", `[]`, "is a JSON array; an object is expected"},
	} {
		if a := request(t, s, "POST", c.path, c.body); a.status != http.StatusBadRequest || !strings.Contains(a.str("detail"), c.says) {
			t.Errorf("%s: %d %s, want %q", c.body, a.status, a.text, c.says)
		}
	}
}

// JSON parsers differ in which of a repeated field's values they take.
func TestRepeatedFieldsAreRefused(t *testing.T) {
	t.Parallel()
	f := newFakes()
	s := newServer(t, f)
	for _, c := range []struct{ path, body string }{
		{"/v1/leases", `{"resource":"a","resource":"b"}`},
		{"/v1/leases", `{"resource":"a","Resource":"b"}`},
		{"/v1/leases", `{"resource":"a","\u0072esource":"b"}`},
		{"/v1/sql", `{"statements":[{"sql":"SELECT $1","args":[7]}],"statements":[{"sql":"SELECT $1"}]}`},
		{"/v1/sql", `{"statements":[{"sql":"SELECT 1","args":[{}]},{"sql":"SELECT 1","sql":"SELECT 2"}]}`},
	} {
		a := request(t, s, "POST", c.path, c.body, "Fencing-Resource", "a", "Fencing-Token", "34."+seal.Reveal())
		if a.status != http.StatusBadRequest || !strings.Contains(a.str("detail"), "twice") {
			t.Errorf("%s: %d %s", c.body, a.status, a.text)
		}
	}
	own := `{"statements":[{"sql":"SELECT $1, $2","args":[{"a":1,"a":2},[[{"b":1,"b":2}]]]},{"sql":"SELECT 1"}]}`
	if a := request(t, s, "POST", "/v1/sql", own, "Fencing-Resource", "a", "Fencing-Token", "34."+seal.Reveal()); a.status != http.StatusOK {
		t.Errorf("an argument's own fields: %d %s", a.status, a.text)
	}
}
