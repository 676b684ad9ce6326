package api_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/api"
)

func TestPairsAndOrdinaryEscapesAreText(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`\ud83d\ude00`: "😀",
		`\u00e9`:       "é",
		`\\ud800`:      `\ud800`,
		`\"\\\u0041\/`: `"\A/`,
	} {
		a := request(t, newServer(t, newFakes()), "POST", "/v1/leases", `{"resource":"`+text+`"}`)
		if a.status != http.StatusCreated || a.str("resource") != want {
			t.Errorf("%s: %d %s, want %q", text, a.status, a.text, want)
		}
	}
}

func TestBodyOfAnotherKindIsNamed(t *testing.T) {
	t.Parallel()
	s := newServer(t, newFakes())
	for body, kind := range map[string]string{`[]`: "array", `"x"`: "string", `7`: "number", `true`: "bool"} {
		a := request(t, s, "POST", "/v1/leases", body)
		if want := "body is a JSON " + kind + "; an object is expected"; a.str("detail") != want {
			t.Errorf("%s: %q, want %q", body, a.str("detail"), want)
		}
	}
}

func TestRevokingArmsPastTheHolder(t *testing.T) {
	t.Parallel()
	f := newFakes()
	s := newServer(t, f)
	a := request(t, s, "POST", "/v1/resources/a%2Fb/revoke/revoke", `{"holder":"ops: stuck"}`)
	if a.status != http.StatusOK || a.str("token") != "35" || a.str("resource") != "a/b/revoke" {
		t.Errorf("%d %s", a.status, a.text)
	}
	request(t, s, "POST", "/v1/resources/x/revoke", `{}`)
	if want := []string{"a/b/revoke", "revoked by ops: stuck", "x", "revoked by somebody over HTTP"}; !slices.Equal(f.revoked, want) {
		t.Errorf("revoked %q, want %q", f.revoked, want)
	}
	for path, c := range map[string]struct {
		body   string
		status int
		field  string
	}{
		"/v1/resources/x/take":            {`{}`, 404, ""},
		"/v1/resources//revoke":           {`{}`, 400, "resource"},
		"/v1/resources/a%2A/revoke":       {`{}`, 400, "resource"},
		"/v1/resources/x/revoke":          {`{"holder":"a\nb"}`, 400, "holder"},
		"/v1/resources/%78/revoke":        {`{"token":"1"}`, 400, "body"},
		"/v1/resources/nothing-in/revoke": {``, 400, "Content-Type"}, // what a web page of another site could send
	} {
		if a := request(t, s, "POST", path, c.body); a.status != c.status || a.str("field") != c.field {
			t.Errorf("%s %s: %d %s", path, c.body, a.status, a.text)
		}
	}
	f.err = fmt.Errorf("%w: never acquired", api.ErrNotFound)
	if a := request(t, s, "POST", "/v1/resources/x/revoke", `{}`); a.status != http.StatusNotFound {
		t.Errorf("never acquired: %d %s", a.status, a.text)
	}
	f.err = &fence.UndrainedError{Resource: "x", Token: 35, Detail: "gid"}
	if a := request(t, s, "POST", "/v1/resources/x/revoke", `{}`); a.status != http.StatusServiceUnavailable || a.str("code") != "ZF005" {
		t.Errorf("undrained: %d %s", a.status, a.text)
	}
}

func TestListPagesThroughTheFences(t *testing.T) {
	t.Parallel()
	f := newFakes()
	s := newServer(t, f)
	f.listing = []fence.Record{{Resource: "orders/1", Token: 7, Holder: "a", ArmedAt: time.Unix(1700000000, 0)}, {Resource: "orders/2", Token: 8}}
	a := request(t, s, "GET", "/v1/resources?prefix=orders%2F&after=orders/0&limit=2", "")
	if want := []any{"orders/", "orders/0", 2}; a.status != http.StatusOK || !slices.Equal(f.listed, want) {
		t.Errorf("%d, asked %v, want %v", a.status, f.listed, want)
	}
	if want := `{"resources":[{"resource":"orders/1","token":"7","sealed":false,"holder":"a","armed_at":"2023-11-14T22:13:20Z","undrained":0,"ended_at":null,"state":"live","left_ms":1500,"waiters":2},`; !strings.HasPrefix(a.text, want) || a.str("next") != "orders/2" {
		t.Errorf("%s", a.text)
	}
	f.listing = nil
	if a := request(t, s, "GET", "/v1/resources", ""); a.text != `{"resources":[],"next":null}`+"\n" || !slices.Equal(f.listed, []any{"", "", 100}) {
		t.Errorf("%s for %v", a.text, f.listed)
	}
	for query, field := range map[string]string{
		"limit=0": "limit", "limit=1001": "limit", "limit=x": "limit", "limit=": "limit", "limit=1&limit=2": "limit",
		"prefix=%FF": "prefix", "prefix=a%00": "prefix", "after=" + strings.Repeat("x", 513): "after", "page=2": "query", "held=yes": "held",
	} {
		if a := request(t, s, "GET", "/v1/resources?"+query, ""); a.status != 400 || a.str("field") != field {
			t.Errorf("%s: %d %s, want field %s", query, a.status, a.text, field)
		}
	}
}

func TestCredentialsAreNotIssuedOnceTheLeaseIsOver(t *testing.T) {
	t.Parallel()
	f := newFakes()
	s := newServer(t, f)
	body := fmt.Sprintf(`{"handle":%q}`, aHandle(t, s))
	f.free = true
	if a := request(t, s, "POST", "/v1/leases/credentials", body); a.status != http.StatusGone || a.str("code") != "lease_lost" {
		t.Errorf("released: %d %s", a.status, a.text)
	}
	f.lockErr = errors.New("no quorum") // the fence's answer is enough, as for writes
	if a := request(t, s, "POST", "/v1/leases/credentials", body); a.status != http.StatusOK {
		t.Errorf("without Redis: %d %s", a.status, a.text)
	}
	ended := time.Now()
	f.record.EndedAt = &ended
	if a := request(t, s, "POST", "/v1/leases/credentials", body); a.status != http.StatusGone || a.str("code") != "lease_lost" {
		t.Errorf("released, without Redis: %d %s", a.status, a.text)
	}
}

func TestRequestsThatAreNoHTTPAreAnswered(t *testing.T) {
	t.Parallel()
	url, _ := serve(t, newServer(t, newFakes()))
	for sent, want := range map[string]string{
		"GET /v1/resources/a%2 HTTP/1.1\r\nHost: localhost\r\n\r\n": "400",
		"nonsense\r\n\r\n":       "400",
		"GET / HTTP/1.1\r\n\r\n": "400", // no Host
		"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: x\r\n\r\n":                                    "501",
		"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + strings.Repeat("x", 80<<10) + "\r\n\r\n":                   "431",
		"GET /v1/resources/a HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n":                          "200",
		"GET /v1/resources/a%2A HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAccept: text/plain\r\n\r\n": "400",
	} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		if _, err := io.WriteString(conn, sent); err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(conn)
		_ = conn.Close()
		if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 "+want+" ") {
			t.Errorf("%.60q: %v, %.400s; want %s", sent, err, answer, want)
		}
	}
}
