package api_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/api"
	"github.com/fencegate/fencegate/wire"
)

// openSessions stand for the sessions of a PostgreSQL port.
type openSessions []wire.Session

func (s openSessions) List() []wire.Session { return s }

func (s openSessions) End(id string) bool { return len(s) > 0 && s[0].ID == id }

func TestSessionsAreListedAndEnded(t *testing.T) {
	t.Parallel()
	resource, token, pid, ms := "orders/1", fence.Token(34), int64(4711), int64(12)
	open := openSessions{
		{ID: "A1", Client: "10.0.0.1:5", User: "app", Database: "shop", Resource: &resource, Token: &token, State: "idle", PID: &pid, App: "psql", Statement: &ms, Since: time.Unix(1700000000, 0), FromClient: 7, ToClient: 8},
		{ID: "B2", User: "report", State: "active"},
	}
	s := newServer(t, newFakes(), func(c *api.Config) { c.Sessions = open })
	a := request(t, s, "GET", "/v1/sessions", "")
	want := `{"sessions":[{"id":"A1","client":"10.0.0.1:5","user":"app","database":"shop","pid":4711,"application_name":"psql","resource":"orders/1","token":"34","state":"idle",` +
		`"since":"2023-11-14T22:13:20Z","statement_ms":12,"bytes_from_client":7,"bytes_to_client":8},{"id":"B2","client":"","user":"report","database":"","pid":null,"application_name":"","resource":null,"token":null,`
	if a.status != http.StatusOK || !strings.HasPrefix(a.text, want) {
		t.Errorf("%d %s", a.status, a.text)
	}
	for _, c := range []struct {
		path, body string
		status     int
		field      string
	}{
		{"/v1/sessions/A1/end", `{"by":"ops"}`, 204, ""},
		{"/v1/sessions/A1/end", `{}`, 204, ""},
		{"/v1/sessions/B2/end", `{}`, 404, ""},
		{"/v1/sessions//end", `{}`, 404, ""},
		{"/v1/sessions/A1/end", ``, 400, "Content-Type"}, // what a web page of another site could send
		{"/v1/sessions/A1/end", `{"why":"x"}`, 400, "body"},
		{"/v1/sessions/A1/end", `{"by":"a\nb"}`, 400, "by"},
		{"/v1/sessions/A1/end", `{"by":"` + strings.Repeat("x", 300) + `"}`, 400, "by"},
	} {
		if a := request(t, s, "POST", c.path, c.body); a.status != c.status || a.str("field") != c.field {
			t.Errorf("%s %s: %d %s, want %d %s", c.path, c.body, a.status, a.text, c.status, c.field)
		}
	}
	bare := newServer(t, newFakes())
	for method, path := range map[string]string{"GET": "/v1/sessions", "POST": "/v1/sessions/A1/end"} {
		if a := request(t, bare, method, path, `{}`); a.status != http.StatusNotImplemented {
			t.Errorf("without a PostgreSQL port: %d %s", a.status, a.text)
		}
	}
	empty := newServer(t, newFakes(), func(c *api.Config) { c.Sessions = openSessions{} })
	if a := request(t, empty, "GET", "/v1/sessions", ""); a.text != `{"sessions":[]}`+"\n" {
		t.Errorf("none: %s", a.text)
	}
	locked := newServer(t, newFakes(), func(c *api.Config) { c.Sessions, c.BearerToken = open, "t" })
	if a := request(t, locked, "GET", "/v1/sessions", ""); a.status != http.StatusUnauthorized {
		t.Errorf("without the bearer token: %d", a.status)
	}
}
