package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fencegate/fencegate/wire"
)

// cli runs one command line in this process.
func cli(t *testing.T, vars map[string]string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = execute(t.Context(), env{
		args:  append([]string{}, args...), // not nil: cobra would take the test binary's own
		stdin: strings.NewReader(""), stdout: &out, stderr: &errs,
		lookup: func(name string) (string, bool) { v, ok := vars[name]; return v, ok },
		environ: func() (all []string) {
			for name, value := range vars {
				all = append(all, name+"="+value)
			}
			return all
		},
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
