package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// cli runs one command line in this process.
func cli(t *testing.T, vars map[string]string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = execute(t.Context(), env{
		args: args, stdin: strings.NewReader(""), stdout: &out, stderr: &errs,
		lookup: func(name string) (string, bool) { v, ok := vars[name]; return v, ok },
	})
	return code, out.String(), errs.String()
}

func TestMalformedInputIsAUsageErrorOfOneLineAndAHint(t *testing.T) {
	t.Parallel()
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string][]string{
		"unknown command":        {"frobnicate"},
		"unknown flag":           {"dev", "--no-such-flag"},
		"malformed duration":     {"run", "--ttl", "soon", "--resource", "r", "--", "true"},
		"run without a command":  {"run", "--resource", "r"},
		"on-lost":                {"run", "--resource", "r", "--on-lost", "shrug", "--", "true"},
		"gateway URL":            {"run", "--resource", "r", "--gateway", "127.0.0.1:7070", "--", "true"},
		"password in the URL":    {"run", "--resource", "r", "--gateway", "http://a:geheim@127.0.0.1:7070", "--", "true"},
		"token file missing":     {"lease", "acquire", "r", "--token-file", empty + ".none"},
		"token file empty":       {"lease", "acquire", "r", "--token-file", empty},
		"no handle":              {"lease", "release"},
		"bucket":                 {"dev", "--ephemeral", "--bucket", "orders"},
		"data and ephemeral":     {"dev", "--ephemeral", "--data", empty},
		"migrate without URL":    {"migrate", "up"},
		"protect without target": {"protect", "orders", "--postgres-url", "postgres://x"},
		"protect with both":      {"protect", "orders", "--resource", "a", "--under", "a/"},
		"serve without database": {"serve"},
		"serve without Redis":    {"serve", "--postgres-url", "postgres://x"},
		"serve without key":      {"serve", "--postgres-url", "postgres://x", "--redis", "a:1"},
		"dev's command":          {"dev", "true"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, stdout, stderr := cli(t, nil, args...)
			lines := strings.Count(stderr, "\n")
			if code != exitUsage || stdout != "" || lines < 1 || lines > 2 || !strings.HasPrefix(stderr, "fencegate: ") {
				t.Errorf("got exit code %d, stdout %q, stderr %q; want %d and one or two lines", code, stdout, stderr, exitUsage)
			}
			if strings.Contains(stderr, "geheim") {
				t.Errorf("a password was printed: %q", stderr)
			}
		})
	}
}

func TestEveryCommandHasHelpWithAnExample(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{},
		{"demo"},
		{"dev"},
		{"serve"},
		{"run"},
		{"protect"},
		{"unprotect"},
		{"migrate", "up"},
		{"migrate", "down"},
		{"migrate", "status"},
		{"lease", "acquire"},
		{"lease", "renew"},
		{"lease", "release"},
		{"resources", "show"},
		{"sessions", "ls"},
		{"sessions", "end"},
		{"objects", "ls"},
		{"objects", "versions"},
		{"objects", "restore"},
		{"objects", "audit"},
		{"nodes", "status"},
		{"nodes", "admit"},
		{"nodes", "leaks"},
		{"nodes", "sweep"},
		{"doctor"},
		{"fence", "ls"},
		{"fence", "show"},
		{"fence", "revoke"},
		{"fence", "protect"},
		{"fence", "unprotect"},
		{"fence", "enforce"},
		{"fence", "uncovered"},
		{"fence", "events"},
		{"fence", "invalidate-all"},
	} {
		code, stdout, _ := cli(t, nil, append(args, "--help")...)
		if code != exitOK || !strings.Contains(stdout, "Examples:") {
			t.Errorf("%v --help: exit code %d, no example in\n%s", args, code, stdout)
		}
	}
}

func TestFlagsCanComeFromTheEnvironment(t *testing.T) {
	t.Parallel()
	code, _, stderr := cli(t, map[string]string{"FENCEGATE_ON_LOST": "shrug"}, "run", "--resource", "r", "--", "true")
	if code != exitUsage || !strings.Contains(stderr, "shrug") {
		t.Errorf("the variable was not read: %d %q", code, stderr)
	}
	code, _, stderr = cli(t, map[string]string{"FENCEGATE_TTL": "soon"}, "run", "--resource", "r", "--", "true")
	if code != exitUsage || !strings.Contains(stderr, "FENCEGATE_TTL") {
		t.Errorf("the error does not name the variable: %d %q", code, stderr)
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
