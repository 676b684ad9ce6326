package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/gateway/pgwire"
	"github.com/fencegate/fencegate/internal/testenv"
)

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestAHangUpHasThePolicyFileReadAgain(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "policies")
	writeFile(t, file, "# at first\npolicy *=open\n")
	cmd, lines, address := startServe(t, testenv.Postgres(t), "--pg-policy-file", file)
	hangUp := func(text, says string) string {
		t.Helper()
		writeFile(t, file, text)
		sendHUP(t, cmd)
		return awaitLine(t, lines, says)
	}
	code := func(err error) string {
		t.Helper()
		if refused, ok := errors.AsType[*pgconn.PgError](err); ok {
			return refused.Code
		}
		return "none"
	}
	conn, err := pgx.Connect(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	if line := hangUp("policy *=grant-required\npolicy app=closed\n", "the policies are refused"); !strings.Contains(line, "line 2") {
		t.Errorf("it says %s", line)
	}
	if _, err := conn.Exec(t.Context(), "SELECT 1"); err != nil {
		t.Errorf("after a file that is refused: %v", err)
	}
	line := hangUp("policy *=grant-required\n", "the rules of the PostgreSQL port were replaced")
	for _, want := range []string{"*@*=grant-required", "*@*=open", "sessions_ending=1"} {
		if !strings.Contains(line, want) {
			t.Errorf("%q is missing in %s", want, line)
		}
	}
	if got := code(conn.PgConn().WaitForNotification(t.Context())); got != "57P01" {
		t.Errorf("the open session ended with %s; want 57P01", got)
	}
	if _, err := pgx.Connect(t.Context(), address); code(err) != "ZF002" {
		t.Errorf("a new session: %v; want ZF002", err)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for lines.Scan() { // to the end
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("it ended with %v", err)
	}
}

func TestAHangUpWithoutAPolicyFileEndsNothing(t *testing.T) {
	t.Parallel()
	cmd, lines, address := startServe(t, testenv.Postgres(t))
	sendHUP(t, cmd)
	awaitLine(t, lines, "nothing to read again")
	conn, err := pgx.Connect(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close(t.Context())
}

func TestPolicyFilesAreReadWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, key := filepath.Join(dir, "policies"), filepath.Join(dir, "key")
	writeFile(t, key, "k1:"+strings.Repeat("5a", 32))
	for text, reason := range map[string]string{
		"":                                      "no policy",
		"# policy *=open\n":                     "no policy",
		"policy *=open":                         "has no line break",
		"policy *=open\npolicy app=open":        "has no line break",
		"policy *=open\n\npolicy\n":             "line 3",
		"*=open\n":                              "line 1",
		"policies *=open\n":                     "line 1",
		"policy *=open\nopen app\n":             "line 2: is not",
		"policy *=open\npolicy app=read-only\n": "never applies",
		"policy app@elsewhere=open\npolicy *=open\n": "another database",
		"policy migrator=open\n":                     "not for everyone",
		"policy *@shop=grant-required\n":             "not for everyone",
		"k1:5a5a\npolicy *=open\n":                   "line 1: is not",
		// It has the form that --pg-policy takes.
		"policy migrator=open,report=read-only,*=grant-required\n": "not for everyone",
		strings.Repeat("#", maxPolicyFile) + "\n\n":                "bytes",
	} {
		writeFile(t, file, text)
		code, _, stderr := cli(t, nil, "serve", "--postgres-url", "postgres://a@127.0.0.1:1/shop", "--redis", "127.0.0.1:1", "--master-key-file", key,
			"--api-listen", "127.0.0.1:0", "--pg-listen", "127.0.0.1:0", "--pg-policy-file", file)
		if code != exitUsage || !strings.Contains(stderr, reason) || !strings.Contains(stderr, "--pg-policy") || strings.Contains(stderr, "5a5a") {
			t.Errorf("%.40q: %d %q; want %d and %q", text, code, stderr, exitUsage, reason)
		}
	}
	for _, args := range [][]string{{"--pg-policy-file", file, "--pg-policy", "*=open"}, {"--pg-policy-file", filepath.Join(dir, "none")}, {"--pg-policy-file", dir}} {
		if code, _, stderr := cli(t, nil, append([]string{"serve", "--postgres-url", "postgres://a@127.0.0.1:1/shop", "--redis", "127.0.0.1:1", "--master-key-file", key}, args...)...); code != exitUsage || !strings.Contains(stderr, "--pg-policy-file") {
			t.Errorf("%q: %d %q", args, code, stderr)
		}
	}
	writeFile(t, file, "  # whole\r\npolicy\tapp@shop=read-only  \n\npolicy my team=grant-required\npolicy *=open\n")
	rules, err := readPolicyFile(file)
	if err != nil || len(rules) != 3 || rules[1] != (pgwire.Rule{User: "my team", Database: "*", Policy: pgwire.PolicyGrantRequired}) {
		t.Errorf("%+v, %v", rules, err)
	}
}
