package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"
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

func TestALeaseIsShown(t *testing.T) {
	t.Parallel()
	vars, _ := lister(t)
	for name, want := range map[string]string{
		"orders/1": "orders/1: held by w with token 7, for another 1.5s unless it is renewed; 1 waiting\n",
		"orders/2": "orders/2: expired; the fence stands at token 8, armed by x at 2026-11-02T09:12:44Z\n",
		"orders/3": "orders/3: released by x, token 8, at 2026-11-02T09:12:45Z\n",
		"orders/9": "orders/9: no fence is recorded: it was never held, or its fence was retired\n",
	} {
		if code, stdout, stderr := cli(t, vars, "lease", "show", name); code != exitOK || stdout != want {
			t.Errorf("%s: %d %q %q", name, code, stdout, stderr)
		}
	}
	if code, stdout, _ := cli(t, vars, "lease", "show", "orders/9", "--json"); code != exitOK || !strings.Contains(stdout, `"state": "never"`) {
		t.Errorf("--json: %d %q", code, stdout)
	}
}

// An operator who does not know that the handle is read from standard input presses Ctrl-C.
func TestAnInterruptEndsTheWaitForAHandle(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"renew", "release"} {
		ctx, interrupt := context.WithCancel(t.Context())
		stdin, typed := io.Pipe()
		code := make(chan int, 1)
		var errs bytes.Buffer
		go func() {
			code <- execute(ctx, env{
				args: []string{"lease", verb, "--gateway", "http://127.0.0.1:1"}, stdin: stdin, stdout: io.Discard, stderr: &errs,
				lookup: func(string) (string, bool) { return "", false },
			})
		}()
		if _, err := typed.Write([]byte("half")); err != nil { // Write returns once it is read
			t.Fatal(err)
		}
		interrupt()
		select {
		case got := <-code:
			if got != exitInterrupted || errs.String() != "fencegate: interrupted\n" {
				t.Errorf("%s: %d %q", verb, got, errs.String())
			}
		case <-time.After(10 * time.Second):
			t.Errorf("%s: it goes on reading", verb)
			_ = typed.Close()
			<-code
		}
	}
}

func TestALeaseThatCanNotBePrintedIsGivenBack(t *testing.T) {
	t.Parallel()
	var released []string
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/leases/release" {
			body, _ := io.ReadAll(r.Body)
			released = append(released, string(body))
			w.WriteHeader(http.StatusNoContent)
			return
		}
		_, _ = io.WriteString(w, `{"resource":"r","token":"7","grant":"7.00","handle":"h7","ttl_ms":30000,"valid_ms":29000}`)
	}))
	t.Cleanup(gateway.Close)
	var errs bytes.Buffer
	code := execute(t.Context(), env{
		args: []string{"lease", "acquire", "r", "--gateway", gateway.URL}, stdin: strings.NewReader(""), stdout: fullDisk{}, stderr: &errs,
		lookup: func(string) (string, bool) { return "", false },
	})
	if code != exitFailed || !strings.Contains(errs.String(), "no space left") || len(released) != 1 || released[0] != `{"handle":"h7"}` {
		t.Errorf("%d %q, released %q", code, errs.String(), released)
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }
