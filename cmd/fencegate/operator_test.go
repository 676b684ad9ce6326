package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/wire"
)

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

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

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

func TestATokenThatNoHeaderMayHoldIsRefusedWithoutBeingShown(t *testing.T) {
	t.Parallel()
	for _, token := range []string{"geheim\nX-Other: 1", "geheim\r", "ge\x00heim", "\x7fgeheim"} {
		code, _, stderr := cli(t, map[string]string{"FENCEGATE_TOKEN": token}, "resources", "show", "r", "--gateway", "http://127.0.0.1:1")
		if code != exitUsage || !strings.Contains(stderr, "FENCEGATE_TOKEN") || strings.Contains(stderr, "heim") {
			t.Errorf("%q: %d %q", token, code, stderr)
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

// Text that others chose is printed escaped: a holder's name must not clear or retitle the operator's terminal.
func TestNoNameTellsTheTerminalWhatToDo(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	vars := map[string]string{"FENCEGATE_POSTGRES_URL": pg.URL}
	runSQL(t, pg.URL, `SELECT fence.raise('orders/1', 5, NULL, E'alice \x1b[2J\x1b]0;root\x07')`,
		`CREATE TABLE "t`+"\x1b[2J"+`" (id int)`, `SELECT fence.protect('"t`+"\x1b[2J"+`"', under => 'orders/', mode => 'report')`)
	for _, args := range [][]string{{"fence", "ls"}, {"fence", "show", "orders/1"}, {"fence", "uncovered"}, {"doctor"}, {"protect", "no\x1b[2Jne", "--under", "a/"}} {
		_, stdout, stderr := cli(t, vars, args...)
		if shown := stdout + stderr; strings.ContainsAny(shown, "\x1b\x07") || !strings.Contains(shown, `\x1b[2`) {
			t.Errorf("%v: %q", args, shown)
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

func TestDoctorWaitsForATimeThatPasses(t *testing.T) {
	t.Parallel()
	for _, patience := range []string{"0s", "-1s"} {
		if code, stdout, stderr := cli(t, nil, "doctor", "--blobs", t.TempDir(), "--patience", patience); code != exitUsage || stdout != "" || !strings.Contains(stderr, "--patience") {
			t.Errorf("%s: %d %q %q", patience, code, stdout, stderr)
		}
	}
}

func TestALookThatIsNotAnsweredEnds(t *testing.T) {
	t.Parallel()
	d := databaseFlags{url: testenv.PostgresEmpty(t).URL, limit: 300 * time.Millisecond}
	err := d.read(t.Context(), func(ctx context.Context, pool *pgxpool.Pool) error {
		_, err := pool.Exec(ctx, "SELECT pg_sleep(60)")
		return err
	})
	if code, hint := classify(err); code != exitUnavailable || !strings.Contains(err.Error(), "has not answered within 300ms") || !strings.Contains(hint, "nothing was changed") {
		t.Errorf("%v, %d %q", err, code, hint)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.read(ctx, func(ctx context.Context, _ *pgxpool.Pool) error { return ctx.Err() }); !errors.Is(err, context.Canceled) || errors.Is(err, errNoAnswer) {
		t.Errorf("interrupted: %v", err)
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
