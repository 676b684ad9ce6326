package runner_test

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/internal/runner"
)

// Only clients with the token of the command's environment get the lease's credentials.
func TestCredentialsAreServedToTheCommandOnly(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(&gateway{ttl: time.Minute})
	defer server.Close()
	c, err := client.New(client.Config{URL: server.URL, HTTPClient: server.Client()})
	if err != nil {
		t.Fatal(err)
	}
	stdin, hold := io.Pipe()
	env, stdout := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		_, err := runner.Run(t.Context(), runner.Config{
			Client: c, Acquire: client.AcquireRequest{Resource: "orders/10 01", TTL: time.Minute},
			Command: []string{"sh", "-c", `echo "$AWS_CONTAINER_CREDENTIALS_FULL_URI"; echo "$AWS_CONTAINER_AUTHORIZATION_TOKEN"; cat`},
			Environ: []string{"PATH=/usr/bin:/bin"}, Stdin: stdin, Stdout: stdout, Stderr: io.Discard, Say: t.Logf,
		})
		ended <- err
	}()
	lines := bufio.NewScanner(env)
	var said [2]string
	for i := range said {
		if !lines.Scan() {
			t.Fatal("the command said nothing")
		}
		said[i] = lines.Text()
	}
	uri, token := said[0], said[1]
	ask := func(uri, token string) (int, map[string]string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, uri, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", token)
		res, err := server.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = res.Body.Close() }()
		said := map[string]string{}
		if err := json.NewDecoder(res.Body).Decode(&said); err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, said
	}
	if status, got := ask(uri, token); status != http.StatusOK || got["AccessKeyId"] != "ASIA1" || got["Token"] != "t" || got["Expiration"] == "" {
		t.Errorf("got %d %v", status, got)
	}
	for _, other := range []string{"", "other", token + "x"} {
		if status, got := ask(uri, other); status != http.StatusForbidden || got["SecretAccessKey"] != "" {
			t.Errorf("with the token %q: %d %v", other, status, got)
		}
	}
	if status, _ := ask(uri+"/x", token); status != http.StatusNotFound {
		t.Errorf("another path: %d", status)
	}
	if !strings.HasPrefix(uri, "http://127.0.0.1:") || strings.Contains(uri, token) {
		t.Errorf("it is served at %q", uri)
	}
	_ = hold.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
