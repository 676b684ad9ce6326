package main

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/internal/testenv"
)

const principalsHead = "principals:\n  - name: worker\n    tokens: [HASH]\n    allow:\n"

func principalsText(rules string) string {
	return strings.ReplaceAll(principalsHead, "HASH", access.DigestOf("the token of the worker").String()) + rules
}

func TestAHangUpHasThePrincipalsReadAgain(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "principals")
	writeFile(t, file, principalsText("      - {resources: orders/*, verbs: [inspect]}\n      - verbs: metrics\n"))
	addr, err := redisserver.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	api := "http://" + addr
	cmd, lines, _ := startServe(t, testenv.Postgres(t), "--api-listen", addr, "--principals", file)
	ask := func(path, token string) int {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, api+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		return resp.StatusCode
	}
	expect := func(when string, want map[string]int) {
		t.Helper()
		for path, status := range want {
			if got := ask(path, "the token of the worker"); got != status {
				t.Errorf("%s: GET %s: %d, want %d", when, path, got, status)
			}
		}
	}
	hangUp := func(text, says string) {
		t.Helper()
		next := file + ".next"
		writeFile(t, next, text)
		if err := os.Rename(next, file); err != nil {
			t.Fatal(err)
		}
		sendHUP(t, cmd)
		awaitLine(t, lines, says)
	}
	first := map[string]int{"/v1/resources/orders/1": 404, "/v1/resources/stock/1": 403, "/metrics": 200, "/v1/sessions": 403}
	expect("at first", first)
	if got := ask("/metrics", "another"); got != http.StatusUnauthorized {
		t.Errorf("a token that nobody has: %d", got)
	}
	hangUp(principalsText("      - {resources: orders/*, verb: [inspect]}\n"), "the principals are refused; the previous ones stay")
	hangUp("principals:\n  - {name: ops, certificates: [dns:ops.example]}\n", "--api-tls-client-ca is missing")
	expect("after a file that is refused", first)
	hangUp(principalsText("      - {resources: stock/*, verbs: [inspect]}\n"), "the principals were replaced")
	expect("after a change", map[string]int{"/v1/resources/orders/1": 403, "/v1/resources/stock/1": 404, "/metrics": 403})
}

// SIGHUP rotates and revokes the token of --token-file, like those of the file.
func TestAHangUpRotatesTheGatewaysToken(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, secret := filepath.Join(dir, "principals"), filepath.Join(dir, "token")
	const named = "  - {name: ops, gateway_token: true, allow: [{verbs: metrics}]}\n"
	writeFile(t, file, principalsText("      - verbs: metrics\n")+named)
	writeFile(t, secret, "short\n")
	addr, err := redisserver.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	cmd, lines, _ := startServe(t, testenv.Postgres(t), "--api-listen", addr, "--principals", file, "--token-file", secret)
	expect := func(when string, want map[string]int) {
		t.Helper()
		for token, status := range want {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+"/metrics", nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer "+token)
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			if resp.StatusCode != status {
				t.Errorf("%s: %q gets %d, want %d", when, token, resp.StatusCode, status)
			}
		}
	}
	hangUp := func(says string) {
		t.Helper()
		sendHUP(t, cmd)
		awaitLine(t, lines, says)
	}
	expect("at first", map[string]int{"short": 200, "the token of the worker": 200})
	writeFile(t, secret, "another token, which is longer\n")
	hangUp("the principals were replaced")
	expect("rotated", map[string]int{"short": 401, "another token, which is longer": 200})
	writeFile(t, secret, "")
	hangUp("the principals are refused; the previous ones stay")
	expect("after a file without a token", map[string]int{"another token, which is longer": 200})
	writeFile(t, secret, "another token, which is longer\n")
	writeFile(t, file, principalsText("      - verbs: metrics\n"))
	hangUp("no principal has gateway_token: true")
	awaitLine(t, lines, "the principals were replaced")
	expect("taken away", map[string]int{"another token, which is longer": 401, "the token of the worker": 200})
}

func TestAShortTokenIsWarnedOf(t *testing.T) {
	t.Parallel()
	for token, warned := range map[string]bool{"": false, "a": true, strings.Repeat("a", minToken-1): true, strings.Repeat("a", minToken): false} {
		var log bytes.Buffer
		warnShort(slog.New(slog.NewTextHandler(&log, nil)), token)
		if strings.Contains(log.String(), "may be guessed") != warned || strings.Contains(log.String(), "aaaa") {
			t.Errorf("%q: %q", token, log.String())
		}
	}
}

// withInput runs one command line in this process.
func withInput(t *testing.T, input string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = execute(t.Context(), env{
		args: args, stdin: strings.NewReader(input), stdout: &out, stderr: &errs,
		lookup: func(string) (string, bool) { return "", false },
	})
	return code, out.String(), errs.String()
}

// endless is a terminal at which nobody types.
type endless struct{ asked, over chan struct{} }

func (e endless) Read([]byte) (int, error) {
	close(e.asked)
	<-e.over
	return 0, io.EOF
}

func TestAnInterruptEndsTheHashOfATokenThatNobodyTypes(t *testing.T) {
	t.Parallel()
	in := endless{make(chan struct{}), make(chan struct{})}
	defer close(in.over)
	ctx, interrupt := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	go func() {
		ended <- execute(ctx, env{
			args: []string{"principals", "hash"}, stdin: in, stdout: io.Discard, stderr: io.Discard,
			lookup: func(string) (string, bool) { return "", false },
		})
	}()
	<-in.asked
	interrupt()
	patience, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	select {
	case code := <-ended:
		if code != exitInterrupted {
			t.Errorf("exit code %d, want %d", code, exitInterrupted)
		}
	case <-patience.Done():
		t.Error("it still waits")
	}
}

func TestPrincipalsAreHashedAndChecked(t *testing.T) {
	t.Parallel()
	token := strings.Repeat("0a", 16)
	code, out, errs := withInput(t, token+"\n", "principals", "hash")
	if code != exitOK || strings.TrimSpace(out) != access.DigestOf(token).String() {
		t.Errorf("hash: %d %q %q", code, out, errs)
	}
	for _, bad := range []string{"", "short", token + "\n" + token, strings.Repeat("é", 20), strings.Repeat("x", 5000)} {
		if code, out, _ := withInput(t, bad, "principals", "hash"); code != exitUsage || out != "" {
			t.Errorf("hash of %.10q: %d %q", bad, code, out)
		}
	}
	file := filepath.Join(t.TempDir(), "principals")
	writeFile(t, file, principalsText("      - {resources: \"orders/*\", verbs: [acquire, sql]}\n      - verbs: metrics\n"))
	if code, out, errs := withInput(t, "", "principals", "check", file); code != exitOK || out != "worker\n  acquire,sql orders/*\n  metrics\n" {
		t.Errorf("check: %d %q %q", code, out, errs)
	}
	writeFile(t, file, principalsText("      - {resources: *, verbs: acquire}\n"))
	if code, _, errs := withInput(t, "", "principals", "check", file); code != exitUsage || !strings.Contains(errs, `line 5: a "*" without quotes`) {
		t.Errorf("check of an alias: %d %q", code, errs)
	}
}
