package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestHealthAsksTheProcessAndReadyWhatItNeeds(t *testing.T) {
	t.Parallel()
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/healthz" {
			_, _ = io.WriteString(w, `{"status":"ok"}`)
			return
		}
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, `{"code":"unavailable","title":"Unavailable","status":503,"detail":"redis: no quorum","part":"redis"}`)
	}))
	t.Cleanup(gateway.Close)
	vars := map[string]string{"FENCEGATE_GATEWAY": gateway.URL}
	if code, stdout, stderr := cli(t, vars, "health"); code != exitOK || !strings.Contains(stdout, `"ok"`) {
		t.Errorf("health: %d %q %q", code, stdout, stderr)
	}
	if code, _, stderr := cli(t, vars, "health", "--ready"); code != exitUnavailable || !strings.Contains(stderr, "no quorum") {
		t.Errorf("ready: %d %q", code, stderr)
	}
	gateway.Close()
	if code, _, stderr := cli(t, vars, "health"); code != exitUnavailable || !strings.Contains(stderr, "refused") {
		t.Errorf("away: %d %q", code, stderr)
	}
	if code, _, _ := cli(t, vars, "health", "x"); code != exitUsage {
		t.Errorf("an argument: %d", code)
	}
}
