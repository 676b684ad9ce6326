package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/wire"
)

// A handle that the gateway did not issue is well-formed: another gateway may have issued it.
func TestAHandleOfAnotherGatewayIsNoMalformedInput(t *testing.T) {
	t.Parallel()
	for field, want := range map[string]int{"handle": exitForbidden, "ttl": exitUsage} {
		gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusBadRequest)
			_ = json.NewEncoder(w).Encode(wire.Problem{Title: "no", Code: wire.CodeInvalid, Field: field, Hint: "compare the keys"})
		}))
		t.Cleanup(gateway.Close)
		var errs bytes.Buffer
		code := execute(t.Context(), env{
			args: []string{"lease", "renew", "--gateway", gateway.URL}, stdin: strings.NewReader("h\n"), stdout: io.Discard, stderr: &errs,
			lookup: func(string) (string, bool) { return "", false },
		})
		if code != want || !strings.Contains(errs.String(), "hint: compare the keys") {
			t.Errorf("%s: %d %q, want %d", field, code, errs.String(), want)
		}
	}
}

func TestWhatMayHaveBeenDoneIsSaidSo(t *testing.T) {
	t.Parallel()
	lost := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_ = conn.Close()
	}))
	t.Cleanup(lost.Close)
	plain := httptest.NewUnstartedServer(nil)
	plain.StartTLS()
	t.Cleanup(plain.Close)
	const look, start = "hint: the gateway may have done it: check", "hint: start one"
	for _, c := range []struct{ gateway, args, hint string }{
		{lost.URL, "revoke r", look},
		{lost.URL, "sessions end A1", look},
		{lost.URL, "lease acquire r", look},
		{lost.URL, "buckets set orders --rule key", look},
		{lost.URL, "buckets drop-rule orders a/", look},
		{lost.URL, "resources show r", start},
		{"http://127.0.0.1:1", "revoke r", start},
		{plain.URL, "revoke r", "with --ca or FENCEGATE_CA"}, // nothing was sent
		{"https://" + strings.TrimPrefix(lost.URL, "http://"), "revoke r", "name it with http://"},
	} {
		code, _, stderr := cli(t, map[string]string{"FENCEGATE_GATEWAY": c.gateway}, strings.Fields(c.args)...)
		if code != exitUnavailable || !strings.Contains(stderr, c.hint) {
			t.Errorf("%s at %s: %d %q", c.args, c.gateway, code, stderr)
		}
	}
}

func TestAStatementWhoseAnswerIsLostMayHaveBeenDone(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	runSQL(t, pg.URL, `CREATE TABLE orders (id int)`, `SELECT fence.raise('orders/1', 5, NULL, '')`)
	for _, c := range []struct{ args, word string }{
		{"revoke orders/1", "fence.revoke"},
		{"protect orders --under orders/", "fence.protect"},
		{"unprotect orders", "fence.unprotect"},
		{"fence invalidate-all --yes", "invalidate_all"},
	} {
		code, stdout, stderr := cli(t, map[string]string{"FENCEGATE_POSTGRES_URL": losingAnswers(t, pg.URL, c.word)}, strings.Fields(c.args)...)
		if code != exitUnavailable || stdout != "" || !strings.Contains(stderr, "outcome is unknown") || !strings.Contains(stderr, "hint: PostgreSQL may have done it: check") {
			t.Errorf("%s: %d %q %q", c.args, code, stdout, stderr)
		}
	}
	code, _, stderr := cli(t, map[string]string{"FENCEGATE_POSTGRES_URL": losingAnswers(t, pg.URL, "drain_invalidated")}, "fence", "invalidate-all", "--yes")
	if code != exitUnavailable || !strings.Contains(stderr, "every earlier grant is refused") || !strings.Contains(stderr, "run it again") {
		t.Errorf("raised, and not drained: %d %q", code, stderr)
	}
}

// losingAnswers proxies PostgreSQL, and closes a connection instead of passing on the answer to a message with word.
func losingAnswers(t *testing.T, address, word string) string {
	t.Helper()
	config, err := pgx.ParseConfig(address)
	if err != nil {
		t.Fatal(err)
	}
	server := net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port)))
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			client, err := ln.Accept()
			if err != nil {
				return
			}
			go loseAnswer(client, server, word)
		}
	}()
	return strings.Replace(address, server, ln.Addr().String(), 1)
}

func loseAnswer(client net.Conn, server, word string) {
	defer func() { _ = client.Close() }()
	upstream, err := net.Dial("tcp", server)
	if err != nil {
		return
	}
	defer func() { _ = upstream.Close() }()
	var said atomic.Bool
	go func() {
		for buf := make([]byte, 64<<10); ; {
			n, err := client.Read(buf)
			if bytes.Contains(buf[:n], []byte(word)) {
				said.Store(true)
			}
			if _, failed := upstream.Write(buf[:n]); err != nil || failed != nil {
				_ = upstream.Close()
				return
			}
		}
	}()
	for buf := make([]byte, 64<<10); ; {
		n, err := upstream.Read(buf)
		if err != nil || said.Load() {
			return
		}
		if _, err := client.Write(buf[:n]); err != nil {
			return
		}
	}
}

// What a later try got does not tell the outcome of the first.
func TestAnUnknownOutcomeIsToldWhateverALaterTryGot(t *testing.T) {
	t.Parallel()
	for name, later := range map[string]error{
		"no connection": &pgconn.ConnectError{}, "a login that is refused": &pgconn.PgError{Code: "28P01"}, "a right that is missing": &pgconn.PgError{Code: "42501"},
	} {
		if code, hint := classifyPostgreSQL(errors.Join(fence.ErrUnknown, later)); code != exitUnavailable || !strings.Contains(hint, "may have done it") {
			t.Errorf("%s: %d %q", name, code, hint)
		}
	}
}

func TestAnotherServerThanAGatewayIsSaidSo(t *testing.T) {
	t.Parallel()
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusMethodNotAllowed)
		_, _ = io.WriteString(w, "<Error><Code>MethodNotAllowed</Code></Error>")
	}))
	t.Cleanup(other.Close)
	code, _, stderr := cli(t, nil, "lease", "acquire", "r", "--gateway", other.URL)
	if code != exitFailed || !strings.Contains(stderr, "MethodNotAllowed") || !strings.Contains(stderr, "hint: check that the URL is a gateway's HTTP API") {
		t.Errorf("%d %q", code, stderr)
	}
}

func TestAProblemHasAHintInTheWordsOfTheCommandLine(t *testing.T) {
	t.Parallel()
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status, code := http.StatusConflict, wire.CodeHeld
		if body, _ := io.ReadAll(r.Body); strings.Contains(string(body), "closed") {
			status, code = http.StatusUnauthorized, wire.CodeUnauthorized
		}
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(wire.Problem{Title: "no", Code: code, Hint: "of the HTTP API"})
	}))
	t.Cleanup(plain.Close)
	another, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = another.Close() })
	go func() {
		for {
			c, err := another.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "SSH-2.0-OpenSSH_9.2\r\n")
			_ = c.Close()
		}
	}()
	for _, c := range []struct {
		gateway, resource, hint string
		code                    int
	}{
		{plain.URL, "open", "`fencegate lease show`", exitHeld},
		{plain.URL, "closed", "FENCEGATE_TOKEN", exitForbidden},
		{strings.Replace(plain.URL, "http:", "https:", 1), "open", "name it with http://", exitUnavailable},
		{"http://" + another.Addr().String(), "open", "something else listens there", exitUnavailable},
	} {
		code, _, stderr := cli(t, nil, "lease", "acquire", c.resource, "--gateway", c.gateway)
		if _, hint, _ := strings.Cut(stderr, "hint: "); code != c.code || !strings.Contains(hint, c.hint) {
			t.Errorf("%s: %d %q, want a hint with %q", c.resource, code, stderr, c.hint)
		}
	}
	if _, _, stderr := cli(t, nil, "lease", "acquire", "r", "--gateway", "127.0.0.1:7070"); !strings.Contains(stderr, "FENCEGATE_GATEWAY") {
		t.Errorf("an address without a scheme: %q", stderr)
	}
	_, err = net.Listen("tcp", another.Addr().String())
	if code, hint := classify(fmt.Errorf("the API: %w", err)); code != exitFailed || !strings.Contains(hint, "--api-listen") {
		t.Errorf("an address in use: %d %q", code, hint)
	}
}

func TestAnS3PortThatIsAwayOrCannotServeHasItsExitCode(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status, code := http.StatusBadRequest, "InvalidRequest"
		if strings.HasSuffix(r.URL.Path, "/away") {
			status, code = http.StatusServiceUnavailable, "ServiceUnavailable"
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, "<Error><Code>"+code+"</Code><Message>why</Message></Error>")
	}))
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "out.csv")
	writeFile(t, file, "a,b\n")
	for _, c := range []struct {
		endpoint, key string
		code          int
		says          string
	}{
		{"http://127.0.0.1:1", "x", exitUnavailable, "hint: see whether AWS_ENDPOINT_URL_S3"},
		{server.URL, "away", exitUnavailable, "ServiceUnavailable (503): why"},
		{server.URL, "x", exitFailed, "InvalidRequest (400): why"},
	} {
		vars := map[string]string{"AWS_ENDPOINT_URL_S3": c.endpoint, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "geheim"}
		code, _, stderr := cli(t, vars, "objects", "stage", "orders", c.key, file)
		if code != c.code || !strings.Contains(stderr, c.says) || strings.Contains(stderr, "geheim") {
			t.Errorf("%s: %d %q, want %d and %q", c.key, code, stderr, c.code, c.says)
		}
	}
}

func TestAnAddressThatIsWrongIsRefusedWithoutItsPassword(t *testing.T) {
	t.Parallel()
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte("k1:"+strings.Repeat("5a", 32)), 0o600); err != nil {
		t.Fatal(err)
	}
	const spaced = "host=h password = geheim x"
	for _, args := range [][]string{
		{"fence", "ls", "--postgres-url", spaced},
		{"migrate", "up", "--postgres-url", spaced},
		{"objects", "ls", "orders", "--postgres-url", spaced},
		{"serve", "--redis", "127.0.0.1:1", "--master-key-file", key, "--postgres-url", spaced},
		{"nodes", "status", "--redis", "redis://:geheim@127.0.0.1:1"},
		{"nodes", "status", "--redis", "rediss://lockers:geheim@127.0.0.1:1"},
		{"nodes", "status", "--redis", "rediss://lockers@127.0.0.1:1/geheim"},
		{"nodes", "status", "--redis", "http://geheim@127.0.0.1:1"},
		{"nodes", "status", "--redis", "127.0.0.1:1,user:geheim@127.0.0.1:1"},
		{"doctor", "--redis", ":geheim@127.0.0.1:1"},
		{"serve", "--redis", "redis://:geheim@127.0.0.1:1", "--master-key-file", key, "--postgres-url", "postgres://a@127.0.0.1:1/b"},
		{"buckets", "ls", "--gateway", "http://127.0.0.1:1/?token=geheim"},
		{"lease", "acquire", "r", "--gateway", "http://127.0.0.1:1/#geheim"},
	} {
		code, stdout, stderr := cli(t, nil, args...)
		if code != exitUsage || strings.Contains(stdout+stderr, "geheim") {
			t.Errorf("%v: %d\n%s%s", args, code, stdout, stderr)
		}
	}
	if code, stdout, stderr := cli(t, nil, "doctor", "--gateway", "http://127.0.0.1:1/?token=geheim"); code != exitFailed || strings.Contains(stdout+stderr, "geheim") {
		t.Errorf("doctor: %d\n%s%s", code, stdout, stderr)
	}
	for _, text := range []string{"r1:6379", "[::1]:6379", "/run/redis.sock", "primary@s1:26379+s2:26379", "redis://r1:6379", "rediss://lockers@[::1]:6379"} {
		if _, err := parseNode(text); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestAPostgreSQLThatIsAwayIsSaidOnce(t *testing.T) {
	t.Parallel()
	vars := map[string]string{"FENCEGATE_POSTGRES_URL": "postgres://app:geheim@127.0.0.1:1/shop"}
	const reason = `no connection to PostgreSQL as user "app" to database "shop": 127.0.0.1:1: connection refused`
	for _, args := range [][]string{{"fence", "ls"}, {"migrate", "status"}, {"objects", "ls", "orders"}} {
		code, _, stderr := cli(t, vars, args...)
		if code != exitUnavailable || !strings.HasSuffix(strings.Split(stderr, "\n")[0], reason) || !strings.Contains(stderr, "hint: check --postgres-url") {
			t.Errorf("%v: %d %s", args, code, stderr)
		}
	}
	if code, stdout, _ := cli(t, vars, "doctor"); code != exitFailed || !strings.Contains(stdout, reason) || strings.Contains(stdout, "geheim") {
		t.Errorf("doctor: %d %s", code, stdout)
	}
}

func TestAnUnreachableGatewayIsSaidWithItsAddress(t *testing.T) {
	t.Parallel()
	const nobody = "http://127.0.0.1:1" // no service listens on port 1
	for _, args := range [][]string{
		{"run", "--resource", "r", "--", "true"}, {"lease", "acquire", "r"}, {"resources", "show", "r"},
	} {
		code, _, stderr := cli(t, map[string]string{"FENCEGATE_GATEWAY": nobody}, args...)
		if code != exitUnavailable || !strings.Contains(stderr, nobody) || !strings.Contains(stderr, "hint: ") {
			t.Errorf("%v: got %d %q", args, code, stderr)
		}
	}
}
