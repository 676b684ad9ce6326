package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSessionsAreListedAndEndedByTheCommandLine(t *testing.T) {
	t.Parallel()
	var asked []string
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		asked = append(asked, r.Method+" "+r.URL.EscapedPath()+" "+string(body))
		switch r.URL.EscapedPath() {
		case "/v1/sessions":
			_, _ = io.WriteString(w, `{"sessions":[{"id":"A1","user":"app","resource":"orders/1\u001b[2J","token":"34","state":"idle","since":"2026-11-02T09:12:44Z"},{"id":"A2"}]}`)
		case "/v1/sessions/A1/end":
			w.WriteHeader(http.StatusNoContent)
		default:
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"code":"not_found","title":"Not found","status":404,"detail":"no open session"}`)
		}
	}))
	t.Cleanup(gateway.Close)
	vars := map[string]string{"FENCEGATE_GATEWAY": gateway.URL}
	if code, stdout, stderr := cli(t, vars, "sessions", "ls", "--json"); code != exitOK || !strings.Contains(stdout, `"id": "A1"`) {
		t.Errorf("ls --json: %d %q %q", code, stdout, stderr)
	}
	code, stdout, stderr := cli(t, vars, "sessions", "ls")
	lines := strings.Split(stdout, "\n")
	if code != exitOK || len(lines) != 4 || !strings.HasPrefix(lines[0], "ID ") || strings.Join(strings.Fields(lines[1]), " ") != `A1 - app orders/1\x1b[2J 34 idle 2026-11-02T09:12:44Z` {
		t.Errorf("ls: %d %q %q", code, stdout, stderr)
	}
	if code, stdout, stderr := cli(t, vars, "sessions", "end", "A1", "--by", "ops"); code != exitOK || stdout+stderr != "" {
		t.Errorf("end: %d %q %q", code, stdout, stderr)
	}
	if code, _, stderr := cli(t, vars, "sessions", "end", "../x"); code == exitOK || !strings.Contains(stderr, "no open session") {
		t.Errorf("end of none: %d %q", code, stderr)
	}
	for _, args := range [][]string{{"sessions", "end"}, {"sessions", "end", ""}, {"sessions", "ls", "x"}, {"sessions", "end", "a", "b"}} {
		if code, _, stderr := cli(t, vars, args...); code != exitUsage {
			t.Errorf("%q: %d %q", args, code, stderr)
		}
	}
	want := `GET /v1/sessions |GET /v1/sessions |POST /v1/sessions/A1/end {"by":"ops"}|POST /v1/sessions/..%2Fx/end {}`
	if got := strings.Join(asked, "|"); got != want {
		t.Errorf("asked %s, want %s", got, want)
	}
}

func TestServeRefusesBadRulesWithTheReason(t *testing.T) {
	t.Parallel()
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte("k1:"+strings.Repeat("5a", 32)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ flag, value, reason string }{
		{"--pg-policy", "app=closed", "grant-required"},
		{"--pg-policy", "*=open,app=read-only", "never applies"},
		{"--pg-policy", "app@elsewhere=open", "another database"},
		{"--pg-max-connections", "0", "1 or more"},
		{"--pg-max-user-connections", "-1", "negative"},
		{"--pg-idle-timeout", "-1s", "negative"},
		{"--pg-idle-timeout", "soon", "soon"},
		{"--pg-slow-client-timeout", "-1s", "negative"},
		{"--drain-timeout", "0s", "more than 0"},
		{"--lame-duck", "-1s", "negative"},
		{"--sql-connections", "0", "1 or more"},
		{"--pg-first-byte-timeout", "0s", "more than 0"},
		{"--pg-max-address-logins", "-1", "negative"},
		{"--pg-proxy-from", "10.0.0.1", "10.0.0.0/24"},
	} {
		code, _, stderr := cli(t, nil, "serve", "--postgres-url", "postgres://a@127.0.0.1:1/shop", "--redis", "127.0.0.1:1", "--master-key-file", key,
			"--api-listen", "127.0.0.1:0", "--pg-listen", "127.0.0.1:0", c.flag, c.value)
		if code != exitUsage || !strings.Contains(stderr, c.reason) {
			t.Errorf("%s %s: %d %q; want %d and %q", c.flag, c.value, code, stderr, exitUsage, c.reason)
		}
	}
}
