//go:build unix

package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
)

// transferable is a gateway with an S3 port that answers GET of any object. Releases are sent to released.
func transferable(t *testing.T, get http.HandlerFunc) (url string, released <-chan struct{}) {
	t.Helper()
	sent := make(chan struct{}, 10)
	mux := http.NewServeMux()
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	mux.HandleFunc("/v1/leases", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"resource":"r","token":"7","grant":"7.0123456789abcdef0123456789abcdef","handle":"h","ttl_ms":60000,"valid_ms":60000}`))
	})
	mux.HandleFunc("/v1/leases/credentials", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, `{"access_key_id":"a","secret_access_key":"b","session_token":"c","endpoint_url":%q,"region":"us-east-1"}`, server.URL)
	})
	mux.HandleFunc("/v1/leases/release", func(w http.ResponseWriter, _ *http.Request) {
		sent <- struct{}{}
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("GET /orders/", get)
	return server.URL, sent
}

func TestALeaseIsReleasedWhenNobodyReadsTheOutput(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"lease acquire":            {"lease", "acquire", "r"},
		"objects cat":              {"objects", "cat", "s3://orders/1", "--resource", "r"},
		"objects cp to the output": {"objects", "cp", "s3://orders/1", "/dev/stdout", "--resource", "r"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, released := transferable(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("hello")) })
			cmd := command(t, t.TempDir(), append(args, "--gateway", url)...)
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			_ = r.Close()
			var stderr strings.Builder
			cmd.Stdout, cmd.Stderr = w, &stderr
			_ = cmd.Run()
			_ = w.Close()
			if cmd.ProcessState.ExitCode() != exitUnread || stderr.String() != "" {
				t.Errorf("it ended with %v, want %d, and said %q", cmd.ProcessState, exitUnread, stderr.String())
			}
			if len(released) != 1 {
				t.Errorf("%d releases, want 1", len(released))
			}
		})
	}
}
