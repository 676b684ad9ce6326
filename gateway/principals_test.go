//go:build unix

package gateway_test

import (
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/fencegate/fencegate/gateway"
	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/internal/testenv"
)

func principal(name string, rules ...access.Rule) access.Definition {
	return access.Definition{Name: name, Tokens: []access.Digest{access.DigestOf(name)}, Rules: rules}
}

func may(resources string, verbs ...access.Verb) access.Rule {
	return access.Rule{Resources: resources, Verbs: verbs}
}

func TestARefusedReloadKeepsTheRightsAndIsMeasured(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	cfg := config(t, pg)
	var err error
	if cfg.Principals, err = access.New([]access.Definition{principal("ops", access.Rule{Verbs: []access.Verb{access.Metrics}})}); err != nil {
		t.Fatal(err)
	}
	c := start(t, cfg)
	c.token = "ops"
	metric := func(want string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+c.g.Addrs().API+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+c.token)
		res, err := c.http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = res.Body.Close() }()
		b, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		if status, text := res.StatusCode, string(b); status != http.StatusOK || !strings.Contains(text, "\nfencegate_principals_last_reload_successful "+want+"\n") {
			t.Errorf("status %d; want the metric at %s", status, want)
		}
	}
	metric("1")
	unreadable := errors.New("line 3: nonsense")
	if err := c.g.SetPrincipals(func() ([]access.Definition, []access.Option, error) { return nil, nil, unreadable }); !errors.Is(err, unreadable) {
		t.Errorf("got %v", err)
	}
	metric("0")
	c.want(403, "GET", "/v1/sessions", nil)
	if err := c.g.SetPrincipals(func() ([]access.Definition, []access.Option, error) {
		return []access.Definition{principal("ops", access.Rule{Verbs: []access.Verb{access.Metrics, access.Sessions}})}, nil, nil
	}); err != nil {
		t.Fatal(err)
	}
	metric("1")
	c.want(200, "GET", "/v1/sessions", nil)
	unverified := func() ([]access.Definition, []access.Option, error) {
		return []access.Definition{{Name: "ops", Certificates: []string{"dns:ops.example"}}}, nil, nil
	}
	if err := c.g.SetPrincipals(unverified); err == nil || !strings.Contains(err.Error(), "APITLSClientCA is missing") {
		t.Errorf("certificates that nobody verifies: %v", err)
	}
	c.want(200, "GET", "/v1/sessions", nil)
	none, err := gateway.New(config(t, pg))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = none.Stop() }()
	if err := none.SetPrincipals(func() ([]access.Definition, []access.Option, error) { return nil, nil, nil }); err == nil {
		t.Error("a gateway without principals takes some: nobody could ask with what token they are known")
	}
}

func TestTheStartSaysWhatTheAPIAsksFor(t *testing.T) {
	t.Parallel()
	some, err := access.New([]access.Definition{principal("ops", access.Rule{Verbs: []access.Verb{access.Metrics}})})
	if err != nil {
		t.Fatal(err)
	}
	pg := testenv.Postgres(t)
	for want, change := range map[string]func(*gateway.Config){
		"everybody":  func(*gateway.Config) {},
		"token":      func(c *gateway.Config) { c.API.BearerToken = "a token of more than twenty characters" },
		"principals": func(c *gateway.Config) { c.Principals = some },
	} {
		var log logbook
		cfg := config(t, pg)
		cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
		change(&cfg)
		start(t, cfg)
		if text := log.String(); !strings.Contains(text, "access="+want+"\n") {
			t.Errorf("no access=%s in %s", want, text)
		}
	}
}

// byCertificate returns principals, one of which is known by its certificate.
func byCertificate(t *testing.T) *access.Principals {
	t.Helper()
	all, err := access.New([]access.Definition{{Name: "ops", Certificates: []string{"dns:ops.example"}}})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
