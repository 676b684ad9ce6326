package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

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
		"serve from elsewhere":   {"serve", "--postgres-url", "postgres://x", "--lock", "etcd"},
		"serve from both":        {"serve", "--postgres-url", "postgres://x", "--lock", "postgres", "--redis", "a:1"},
		"serve without a key":    {"serve", "--postgres-url", "postgres://x", "--lock", "postgres"},
		"dev from elsewhere":     {"dev", "--ephemeral", "--lock", "etcd"},
		"serve without key":      {"serve", "--postgres-url", "postgres://x", "--redis", "a:1"},
		"dev's command":          {"dev", "true"},
		"revoke at both":         {"revoke", "r", "--gateway", "http://127.0.0.1:1", "--postgres-url", "postgres://a:geheim@127.0.0.1:1/x"},
		"a prefix without table": {"activity", "orders/"},
		"a table of refusals":    {"activity", "--table", "--refused"},
		"a table in JSON":        {"activity", "--table", "--json"},
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

func TestAHintNamesTheHelpOfTheCommandThatWasRun(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		"see fencegate --help":             {"frobnicate"},
		"see fencegate run --help":         {"run", "--resource", "r"},
		"see fencegate objects ls --help":  {"objects", "ls"},
		"see fencegate migrate up --help":  {"migrate", "up"},
		"see fencegate buckets set --help": {"buckets", "set", "orders"},
	} {
		if code, _, stderr := cli(t, nil, args...); code != exitUsage || !strings.HasSuffix(stderr, "hint: "+want+"\n") {
			t.Errorf("%v: %d %q, want %q", args, code, stderr, want)
		}
	}
	if _, _, stderr := cli(t, nil, "run", "--resource", "r"); !strings.Contains(stderr, "the command is missing") {
		t.Errorf("no command: %q", stderr)
	}
}

func TestNoVariableAsksForTheVersion(t *testing.T) {
	t.Parallel()
	if code, stdout, stderr := cli(t, map[string]string{"FENCEGATE_VERSION": "1.2"}); code != exitOK || !strings.Contains(stdout, "Usage:") {
		t.Errorf("%d %q %q", code, stdout, stderr)
	}
}

// The gateway itself refuses it as too long.
func TestTheLongestWaitThereIsReachesTheGateway(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `{"code":"invalid","detail":"too long","status":400}`)
	}))
	t.Cleanup(server.Close)
	code, _, stderr := cli(t, nil, "lease", "acquire", "r", "--wait", "2562047h47m16s", "--gateway", server.URL)
	if code == exitUnavailable || !strings.Contains(stderr, "too long") {
		t.Errorf("%d %q", code, stderr)
	}
}

func TestEveryCommandHasHelpWithAnExample(t *testing.T) {
	t.Parallel()
	var leaves int
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
		if cmd.HasAvailableSubCommands() && cmd.HasParent() || cmd.Hidden {
			return
		}
		leaves++
		path := cmd.CommandPath()
		code, stdout, _ := cli(t, nil, append(strings.Fields(path)[1:], "--help")...)
		if code != exitOK || !strings.Contains(stdout, "Examples:") || !strings.Contains(cmd.Example, "fencegate ") || !strings.Contains(cmd.Example, cmd.Name()) {
			t.Errorf("%s --help: exit code %d, no example of it in\n%s", path, code, stdout)
		}
		if cmd.Short == "" {
			t.Errorf("%s is not described", path)
		}
	}
	walk(newRoot(env{}))
	if leaves < 20 {
		t.Errorf("only %d commands were looked at", leaves)
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

// An unset shell variable must not start a gateway without authentication.
func TestNoFlagOfRightsOrSecretsMayBeEmpty(t *testing.T) {
	t.Parallel()
	never := 0
	newServe(env{}).Flags().VisitAll(func(f *pflag.Flag) {
		named := strings.HasSuffix(f.Name, "-file") || strings.Contains(f.Name, "-tls-c") && f.Value.Type() != "bool" || strings.HasSuffix(f.Name, "-tls-key")
		if (named || f.Name == "principals" || f.Name == "config") != (f.Annotations[neverEmpty] != nil) && f.Name != "pg-policy" && f.Name != "s3-access-key" {
			t.Errorf("--%s: may be empty, or names no secret", f.Name)
		}
		if f.Annotations[neverEmpty] == nil {
			return
		}
		never++
		for _, how := range []struct {
			says string
			vars map[string]string
			args []string
		}{
			{"--" + f.Name + " ", nil, []string{"serve", "--" + f.Name, ""}},
			{envName(f.Name) + " is empty", map[string]string{envName(f.Name): ""}, []string{"serve"}},
		} {
			how.args = append(how.args, "--lock", "postgres", "--postgres-url", "postgres://x")
			if code, _, stderr := cli(t, how.vars, how.args...); code != exitUsage || !strings.Contains(stderr, how.says) {
				t.Errorf("%q with %v: %d %q", how.args, how.vars, code, stderr)
			}
		}
	})
	if never < 20 {
		t.Errorf("%d flags are never empty", never)
	}
}
