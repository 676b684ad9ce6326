//go:build unix

package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
)

func TestALeaseIsReleasedWhenNobodyReadsTheOutput(t *testing.T) {
	t.Parallel()
	released := make(chan struct{}, 10)
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/leases", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"resource":"r","token":"7","grant":"7.0123456789abcdef0123456789abcdef","handle":"h","ttl_ms":60000,"valid_ms":60000}`))
	})
	mux.HandleFunc("/v1/leases/release", func(w http.ResponseWriter, _ *http.Request) {
		released <- struct{}{}
		w.WriteHeader(http.StatusNoContent)
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	cmd := command(t, t.TempDir(), "lease", "acquire", "r", "--gateway", server.URL)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Close()
	var stderr strings.Builder
	cmd.Stdout, cmd.Stderr = w, &stderr
	_ = cmd.Run()
	_ = w.Close()
	if cmd.ProcessState.ExitCode() != exitNoReader || stderr.String() != "" {
		t.Errorf("it ended with %v, want %d, and said %q", cmd.ProcessState, exitNoReader, stderr.String())
	}
	if len(released) != 1 {
		t.Errorf("%d releases, want 1", len(released))
	}
}
