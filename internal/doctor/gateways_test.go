package doctor

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

// gatewayOf is a ready gateway that accepts one token, and reports its keys.
func gatewayOf(t *testing.T, keys string) string {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/readyz":
			_, _ = w.Write([]byte(`{"status": "ready"}`))
		case r.Header.Get("Authorization") != "Bearer geheim" && !strings.Contains(keys, "open"):
			w.WriteHeader(http.StatusUnauthorized)
		default:
			_, _ = w.Write([]byte(`{"keys": [` + keys + `]}`))
		}
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

func TestEachGatewayIsExaminedAndNamed(t *testing.T) {
	t.Parallel()
	one := gatewayOf(t, "")
	findings := Examine(t.Context(), Config{GatewayURL: one + ", http://127.0.0.1:1,nonsense"})
	for _, wanted := range []struct {
		status Status
		has    string
	}{{OK, one + ": ready"}, {Fail, "http://127.0.0.1:1: "}, {Fail, "address 3 of --gateway: "}} {
		found := false
		for _, f := range findings {
			found = found || f.Status == wanted.status && strings.Contains(f.Found, wanted.has)
		}
		if !found {
			t.Errorf("no %s with %q in %+v", wanted.status, wanted.has, findings)
		}
	}
	for _, f := range findings {
		if f.Check == "gateway.token" {
			t.Errorf("a token was tried where there is none: %+v", f)
		}
	}
}

// No command follows a redirect, and the token must not go where it leads.
func TestARedirectIsNotFollowed(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		_, _ = w.Write([]byte(`{"status": "ready"}`))
	}))
	defer other.Close()
	for _, from := range []string{"/", "/v1/"} { // all paths, and those with a token alone
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(r.URL.Path, from) {
				http.Redirect(w, r, other.URL+r.URL.Path, http.StatusTemporaryRedirect)
				return
			}
			_, _ = w.Write([]byte(`{"status": "ready"}`))
		}))
		check := map[string]string{"/": "gateway.reachable", "/v1/": "gateway.token"}[from]
		findings := Examine(t.Context(), Config{GatewayURL: srv.URL, Token: "geheim"})
		want(t, findings, check, Fail, "redirects to "+other.URL, "--gateway")
		srv.Close()
	}
	if n := asked.Load(); n > 0 {
		t.Errorf("the address that the gateway redirects to got %d requests", n)
	}
}

func TestTheBearerTokenIsTriedAndNotShown(t *testing.T) {
	t.Parallel()
	url := gatewayOf(t, "")
	want(t, Examine(t.Context(), Config{GatewayURL: url, Token: "geheim"}), "gateway.token", OK, url)
	findings := Examine(t.Context(), Config{GatewayURL: url, Token: "falsch"})
	want(t, findings, "gateway.token", Fail, url, "not accepted", "FENCEGATE_TOKEN")
	for _, f := range findings {
		if strings.Contains(f.Found+f.Do, "falsch") {
			t.Errorf("the token is shown: %+v", f)
		}
	}
}

func TestAGatewayWithAnotherMasterKeyIsFound(t *testing.T) {
	t.Parallel()
	const k1, other, k2 = `{"id":"k1","fingerprint":"aa"}`, `{"id":"k1","fingerprint":"bb"}`, `{"id":"k2","fingerprint":"cc"}`
	look := func(keys ...string) []Finding {
		var urls []string
		for _, k := range keys {
			urls = append(urls, gatewayOf(t, k))
		}
		return Examine(t.Context(), Config{GatewayURL: strings.Join(urls, ","), Token: "geheim"})
	}
	want(t, look(k1, other), "gateway.keys", Fail, `"k1"`, "--master-key-file")
	want(t, look(k1, k2+","+k1), "gateway.keys", Fail, `"k2"`) // the first does not know the second one's key
	want(t, look(k1+","+k2, k2+","+k1), "gateway.keys", OK)    // a rotation
	const open = `{"id":"open","fingerprint":"dd"}`            // of a gateway without authentication
	want(t, Examine(t.Context(), Config{GatewayURL: gatewayOf(t, open) + "," + gatewayOf(t, open)}), "gateway.keys", OK)
	want(t, look(k2+","+k1, k2), "gateway.keys", Warn, `the master key "k1", with which`, "if that is an older key")
	want(t, look(k1, k1, ""), "gateway.keys", Warn, "does not tell its master keys")
}
