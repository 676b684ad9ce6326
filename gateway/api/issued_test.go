package api_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/gateway/activity"
	"github.com/fencegate/fencegate/gateway/api"
)

// provider verifies tokens "jwt.of.NAME", which end after a time; "jwt.of.away" can't be verified.
type provider time.Duration

func (p provider) Verify(_ context.Context, token string) (access.Identity, error) {
	name, ok := strings.CutPrefix(token, "jwt.of.")
	switch {
	case name == "away":
		return access.Identity{}, errors.New("10.0.0.9 does not answer")
	case !ok:
		return access.Identity{}, access.ErrUnknown
	}
	return access.Identity{Issuer: "idp", Claims: map[string][]string{"sub": {name}}, Expires: time.Now().Add(time.Duration(p))}, nil
}

// claiming are the tokens of a name.
func claiming(name string) []access.Claims {
	return []access.Claims{{Issuer: "idp", Equal: map[string]string{"sub": name}}}
}

// shortly is "me", known by tokens that end in half a second.
func shortly(t *testing.T, verbs ...access.Verb) *access.Principals {
	t.Helper()
	me := access.Definition{Name: "me", Issued: claiming("me"), Rules: []access.Rule{{Resources: "*", Verbs: verbs}}}
	all, err := access.New([]access.Definition{me}, access.VerifiedBy(provider(500*time.Millisecond)))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestAStreamEndsWithTheToken(t *testing.T) {
	t.Parallel()
	feed := activity.New(activity.Config{})
	defer feed.Close()
	s := newServer(t, newFakes(), func(c *api.Config) { c.Principals, c.Events = shortly(t, access.Inspect), feed })
	began := time.Now()
	a := request(t, s, "GET", "/v1/events", "", "Authorization", "Bearer jwt.of.me")
	if took := time.Since(began); a.status != http.StatusOK || took < 400*time.Millisecond || took > 5*time.Second {
		t.Errorf("%d after %v", a.status, took)
	}
}

// A wait ends with the token, before the fence is armed.
func TestAWaitEndsWithTheToken(t *testing.T) {
	t.Parallel()
	f := newFakes()
	f.acquire = func(ctx context.Context, _ leasing.Request) (leasing.Lease, error) {
		<-ctx.Done()
		return leasing.Lease{}, ctx.Err()
	}
	s := newServer(t, f, func(c *api.Config) { c.Principals = shortly(t, access.Acquire) })
	began := time.Now()
	a := request(t, s, "POST", "/v1/leases", `{"resource":"orders/1","wait":"60s"}`, "Authorization", "Bearer jwt.of.me")
	if took := time.Since(began); a.status != http.StatusForbidden || !strings.Contains(a.text, "expired") || took > 10*time.Second {
		t.Errorf("%d %s after %v", a.status, a.text, took)
	}
}

// Where it can't be found out whether a token counts, nothing is done, and nobody is told that the token is wrong.
func TestATokenThatCannotBeVerifiedIsAnOutage(t *testing.T) {
	t.Parallel()
	s := newServer(t, newFakes(), func(c *api.Config) { c.Principals = shortly(t, access.Inspect) })
	a := request(t, s, "GET", "/v1/resources", "", "Authorization", "Bearer jwt.of.away")
	if a.status != http.StatusServiceUnavailable || strings.Contains(a.text, "10.0.0.9") {
		t.Errorf("got %d %s", a.status, a.text)
	}
}

func TestSomebodyLogsInAtThePageByATokenOfOthers(t *testing.T) {
	t.Parallel()
	feed := activity.New(activity.Config{})
	defer feed.Close()
	s := newServer(t, newFakes(), func(c *api.Config) { c.Principals, c.Events = shortly(t, access.Inspect), feed })
	form := strings.NewReader("token=jwt.of.me")
	req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://127.0.0.1/page/login", form)
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Origin", "http://127.0.0.1")
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, req)
	if w.Code != http.StatusSeeOther || len(w.Result().Cookies()) != 1 {
		t.Fatalf("log-in: %d %s", w.Code, w.Body)
	}
}
