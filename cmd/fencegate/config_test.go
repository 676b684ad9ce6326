package main

import (
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/fencegate/fencegate/internal/certs"
)

const masterKey = "k1:5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a"

// optionFile is a file that serve would start with, plus more.
func optionFile(t *testing.T, more string) (path string) {
	t.Helper()
	dir := t.TempDir()
	path, key := filepath.Join(dir, "fencegate.yaml"), filepath.Join(dir, "key")
	writeFile(t, key, masterKey)
	writeFile(t, path, "lock: postgres\nmaster-key-file: "+key+"\npostgres: {url: postgres://gateway@127.0.0.1:1/shop}\n"+more)
	return path
}

// printed returns config print's value for a key of a section, or "".
func printed(t *testing.T, key string, vars map[string]string, args ...string) string {
	t.Helper()
	code, stdout, stderr := cli(t, vars, append([]string{"config", "print"}, args...)...)
	if code != exitOK {
		t.Fatalf("%q: %d %s", args, code, stderr)
	}
	if found := regexp.MustCompile(`(?m)^ *` + key + `: (.*)$`).FindStringSubmatch(stdout); found != nil {
		return found[1]
	}
	return ""
}

func TestFlagsCountBeforeVariablesAndThoseBeforeTheFile(t *testing.T) {
	t.Parallel()
	file := optionFile(t, "sql:\n  connections: 3\nsweep:\n  grace: 48h\npg:\n  policy: ['a=read-only', '*=open']\n")
	vars := map[string]string{"FENCEGATE_CONFIG": file}
	for _, c := range []struct {
		key, variable, flag, want string
	}{
		{"connections", "", "", "3 # " + file + ":5"},
		{"connections", "4", "", "4 # variable FENCEGATE_SQL_CONNECTIONS"},
		{"connections", "4", "5", "5 # flag --sql-connections"},
		{"connections", "", "5", "5 # flag --sql-connections"},
		{"connections", "4", "0", "0 # flag --sql-connections"},
		{"grace", "", "", "48h0m0s # " + file + ":7"},
		{"records", "", "", "720h0m0s # default"},
		{"policy", "", "", "# " + file + ":9"},
	} {
		vars["FENCEGATE_SQL_CONNECTIONS"] = c.variable // if it is empty, the file's value applies
		var args []string
		if c.flag != "" {
			args = []string{"--sql-connections", c.flag}
		}
		if got := printed(t, c.key, vars, args...); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
	vars["FENCEGATE_CONFIG"] = filepath.Join(t.TempDir(), "none")
	if got := printed(t, "connections", vars, "--config", file); got != "3 # "+file+":5" { // the flag names the file, too
		t.Errorf("connections: %q", got)
	}
}

// Each option has its own key, which is no other's and no section's. What print writes is a file with the same values.
func TestEachOptionCanStandInTheFile(t *testing.T) {
	t.Parallel()
	seen, text := map[string]string{}, map[string]string{"string": "'x y'", "bool": "true", "int": "7", "duration": "7m0s", "stringSlice": "['a:1,b', 'c:2']", "stringArray": "['a=b,c', 'd=e']"}
	cmd := newServe(env{})
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		key := keyOf(f)
		if key == "" && f.Name != "help" && f.Name != "config" {
			t.Errorf("--%s has no key", f.Name)
		}
		for other, flag := range seen {
			if other == key || strings.HasPrefix(other, key+".") || strings.HasPrefix(key, other+".") {
				t.Errorf("--%s is %s, and --%s %s", f.Name, key, flag, other)
			}
		}
		if key != "" {
			seen[key] = f.Name
		}
	})
	if len(seen) < 60 {
		t.Errorf("only %d keys", len(seen))
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "all.yaml")
	var b strings.Builder
	sections := map[string]string{}
	for key, flag := range seen {
		section, name, ok := cutLast(key)
		line := name + ": " + text[cmd.Flags().Lookup(flag).Value.Type()]
		if !ok {
			b.WriteString(line + "\n")
			continue
		}
		sections[section] += line + ", "
	}
	for _, port := range []string{"api", "pg", "s3", "redis"} {
		sections[port] += "tls: {" + sections[port+".tls"] + "}, "
		delete(sections, port+".tls")
	}
	for name, lines := range sections {
		b.WriteString(name + ": {" + strings.TrimSuffix(lines, ", ") + "}\n")
	}
	writeFile(t, path, b.String())
	code, first, stderr := cli(t, nil, "config", "print", "--config", path)
	if code != exitOK || strings.Contains(first, "default") || strings.Count(first, "# "+path) != len(seen) {
		t.Fatalf("%d %s\n%s", code, stderr, first)
	}
	again := filepath.Join(dir, "again.yaml")
	writeFile(t, again, first)
	_, second, _ := cli(t, nil, "config", "print", "--config", again)
	comments := regexp.MustCompile(` # .*`)
	if got, want := comments.ReplaceAllString(second, ""), comments.ReplaceAllString(first, ""); got != want {
		t.Errorf("printed again:\n%s\nat first:\n%s", got, want)
	}
}

func cutLast(key string) (section, name string, ok bool) {
	i := strings.LastIndexByte(key, '.')
	if i < 0 {
		return "", key, false
	}
	return key[:i], key[i+1:], true
}

func TestNoSecretIsPrinted(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"postgres://gw:geheim@db/app?sslmode=require":            "postgres://gw:***@db/app?sslmode=require",
		"postgres://gw@db/app":                                   "postgres://gw@db/app",
		"postgres://gw@db/app?password=geheim&sslmode=require":   "postgres://gw@db/app?password=***&sslmode=require",
		"postgres://gw:a@db/app?sslpassword=geheim":              "postgres://gw:***@db/app?sslpassword=***",
		"postgres://gw:12/geheim@db/app":                         mask,
		"postgres://gw:12#geheim@db/app":                         mask,
		"postgres://gw:12?geheim@db/app":                         mask,
		"postgres://gw:ge/heim@db/app":                           mask,
		"postgres://gw:ge%heim@db/app":                           mask,
		"postgres://gw:ge@heim@db/app":                           "postgres://gw:***@db/app",
		"host=db user=gw password=geheim":                        mask,
		"host=db user=gw PASSWORD = 'geheim'":                    mask,
		"/etc/secret/passwords":                                  "/etc/secret/passwords",
		"host=db user=gw":                                        "host=db user=gw",
		"rediss://gw:geheim@r1:6379":                             "rediss://gw:***@r1:6379",
		"s3://b/p?endpoint=https://a:geheim@s3:9000&region=x":    mask,
		"s3://b/p?endpoint=https%3A%2F%2Fa%3Ageheim%40s3%3A9000": mask,
		"s3://b/p?endpoint=http://s3:9000&region=x":              "s3://b/p?endpoint=http://s3:9000&region=x",
		"127.0.0.1:7070":                                         "127.0.0.1:7070",
	} {
		if got := masked(text); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
	file := optionFile(t, "sql: {url: 'postgres://sql:geheim@db/app'}\n")
	vars := map[string]string{"FENCEGATE_POSTGRES_URL": "host=db password=geheim", "FENCEGATE_REDIS_PASSWORD": "geheim"}
	_, stdout, stderr := cli(t, vars, "config", "print", "--config", file, "--redis", "rediss://a:geheim@r:1")
	if strings.Contains(stdout+stderr, "geheim") || strings.Count(stdout, mask) != 4 {
		t.Errorf("%s%s", stdout, stderr)
	}
}

func TestConfigCheckTellsAllThatIsWrong(t *testing.T) {
	t.Parallel()
	check := func(more string, vars map[string]string, args ...string) (int, string) {
		t.Helper()
		code, stdout, stderr := cli(t, vars, append([]string{"config", "check", "--config", optionFile(t, more)}, args...)...)
		return code, stdout + stderr
	}
	if code, said := check("", nil, "--log-level", "debug"); code != exitOK || !strings.Contains(said, "3 options from the file, 0 from variables, 1 from flags") {
		t.Errorf("%d %s", code, said)
	}
	for _, c := range []struct {
		more string
		vars map[string]string
		says []string
	}{
		{"apj: {}\npg: {listn: 1}\n", map[string]string{"FENCEGATE_SQL_ULR": "geheim"}, []string{":4: unknown key apj; did you mean api?", ":5: unknown key pg.listn; did you mean pg.listen?", "variable FENCEGATE_SQL_ULR belongs to no option; did you mean FENCEGATE_SQL_URL?", "3 errors"}},
		{"", map[string]string{"FENCEGATE_QUITE_ANOTHER_THING": "geheim"}, []string{"variable FENCEGATE_QUITE_ANOTHER_THING belongs to no option\n"}},
		{"", map[string]string{"FENCEGATE_SWEEP_RATE": "much"}, []string{"variable FENCEGATE_SWEEP_RATE: invalid"}},
		{"api:\n  tls: {cert: c}\n", nil, []string{"--api-tls-cert and --api-tls-key are needed together (api.tls.cert at ", ":5)"}},
		{"api: {listen: '7070'}\n", nil, []string{"--api-listen is \"7070\"", "(api.listen at ", ":4)"}},
		{"api: {listen: '0.0.0.0:0'}\n", nil, []string{"off loopback the HTTP API needs a bearer token"}},
		{"api: {token-file: /nowhere/geheim.token}\n", nil, []string{"--token-file: open /nowhere/", "(api.token-file at "}},
		{"pg: {policy: []}\n", nil, []string{":4: pg.policy is empty"}},
		{"pg: {policy: ['*=open', '']}\n", nil, []string{":4: pg.policy is empty"}},
		{"principals: ''\n", nil, []string{":4: principals is empty"}},
		{"pg: {policy: '*=shut'}\n", nil, []string{"--pg-policy", "(pg.policy at "}},
		{"sweep: {grace: -1h}\n", nil, []string{"--sweep-grace is negative (sweep.grace at "}},
		{"sql: {url: 'postgres://a:geheim@h:x/d'}\n", nil, []string{"--sql-url is not a PostgreSQL address (sql.url at "}},
		{"log: {level: loud}\n", nil, []string{`--log-level "loud": it must be debug, info, warn or error (log.level at `}},
		{"log: {format: xml}\n", nil, []string{`--log-format "xml"`}},
		{"redis: {nodes: ['a:1']}\n", nil, []string{"are for --lock redis", "(redis.nodes at "}},
		{"s3: {buckets: [orders]}\n", nil, []string{"orders"}},
		{"s3: {buckets: ['x=zzz']}\n", nil, []string{`--bucket "x=zzz": `, "(s3.buckets at ", ":4)"}},
		{"config: other.yaml\n", nil, []string{"unknown key config"}},
	} {
		code, said := check(c.more, c.vars)
		for _, want := range c.says {
			if code != exitUsage || !strings.Contains(said, want) || strings.Contains(strings.ReplaceAll(said, "geheim.token", ""), "geheim") {
				t.Errorf("%q: %d %s; want %q", c.more, code, said, want)
			}
		}
	}
	for _, args := range [][]string{{"config", "check", "f.yaml"}, {"config", "print", "f.yaml"}} {
		if code, _, stderr := cli(t, nil, args...); code != exitUsage || !strings.Contains(stderr, "--config") {
			t.Errorf("%q: %d %s", args, code, stderr)
		}
	}
	for _, command := range []string{"serve", "config print"} {
		if code, _, stderr := cli(t, nil, append(strings.Fields(command), "--config", optionFile(t, "apj: {}\n"))...); code != exitUsage || !strings.Contains(stderr, "did you mean api?") {
			t.Errorf("%s: %d %s", command, code, stderr)
		}
	}
}

// Each fault is reported once. A consequence of another fault is not reported.
func TestConfigCheckTellsAllFaultsOfTheCombinedOptions(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		file string
		says []string
	}{
		{"{}\n", []string{"--postgres-url is missing", "--redis is missing", "--master-key-file is missing"}},
		{"lock: postgres\npostgres: {url: nonsense:}\nmaster-key-file: /nowhere/key\napi: {listen: '7070', token-file: /nowhere/token}\npg: {policy: '*=shut'}\nlog: {level: loud}\n" +
			"s3: {buckets: ['x=zzz'], tls: {cert: /nowhere/cert}}\nsweep: {grace: -1h}\n", []string{
			"--postgres-url is not a PostgreSQL address", "--master-key-file: open /nowhere/key", `--api-listen is "7070"`, "--token-file: open /nowhere/token", "--pg-policy",
			`--log-level "loud"`, `--bucket "x=zzz"`, "--bucket needs --blobs", "--s3-tls-cert and --s3-tls-key are needed together", "--sweep-grace is negative",
		}},
		{"postgres: {url: 'postgres://a@b/c'}\nmaster-key-file: /nowhere/key\nprincipals: /nowhere/principals\napi: {listen: '0.0.0.0:0', token-file: /nowhere/token}\n" +
			"redis: {nodes: ['a:1'], password-file: /nowhere/password}\n", []string{"open /nowhere/key", "open /nowhere/token", "open /nowhere/password"}},
		{"postgres: {url: 'postgres://a@b/c'}\nlock: postgres\nmaster-key-file: /nowhere/key\npg: {listen: '', policy-file: /nowhere/policy}\n" +
			"s3: {access-key: k, secret-key-file: /nowhere/secret}\n", []string{
			"open /nowhere/key", "--pg-policy-file needs --pg-listen", "--pg-policy-file /nowhere/policy", "open /nowhere/secret",
		}},
	} {
		path := filepath.Join(t.TempDir(), "c.yaml")
		writeFile(t, path, c.file)
		code, _, stderr := cli(t, nil, "config", "check", "--config", path)
		lines := strings.Split(stderr, "\n")
		if code != exitUsage || !strings.Contains(stderr, fmt.Sprintf("%d errors in the configuration", len(c.says))) || len(lines) != len(c.says)+3 { // the sum, a hint, and the end
			t.Errorf("%d errors are wanted: %d\n%s", len(c.says), code, stderr)
		}
		for _, want := range c.says {
			if strings.Count(stderr, want) != 1 {
				t.Errorf("%q is reported %d times in\n%s", want, strings.Count(stderr, want), stderr)
			}
		}
	}
}

func TestAVariableThatIsNobodysIsTold(t *testing.T) {
	t.Parallel()
	vars := map[string]string{
		"FENCEGATE_POSTGRS_URL": "geheim", "FENCEGATE_TOKEN": "", "FENCEGATE_REDIS_PASSWORD": "", "FENCEGATE_GATEWAY": "http://x", "FENCEGATE_TEST_SERVICES": "local", "FENCE_RESOURCE": "r",
		// Kubernetes sets these for services named fencegate and fencegate-db.
		"FENCEGATE_SERVICE_HOST": "10.0.0.1", "FENCEGATE_SERVICE_PORT": "7070", "FENCEGATE_SERVICE_PORT_API": "7070", "FENCEGATE_PORT": "tcp://10.0.0.1:7070",
		"FENCEGATE_PORT_7070_TCP": "tcp://10.0.0.1:7070", "FENCEGATE_PORT_7070_TCP_PROTO": "tcp", "FENCEGATE_PORT_7070_TCP_PORT": "7070", "FENCEGATE_PORT_7070_TCP_ADDR": "10.0.0.1",
		"FENCEGATE_DB_SERVICE_HOST": "10.0.0.2", "FENCEGATE_DB_PORT": "tcp://10.0.0.2:5432",
		"FENCEGATE_PG_PORT": "7432", "FENCEGATE_YES": "true",
	}
	code, _, stderr := cli(t, vars, "serve", "--lock", "postgres")
	if code != exitUsage || strings.Count(stderr, "belongs to no option") != 3 || strings.Contains(stderr, "geheim") || !strings.Contains(stderr, "level=WARN") {
		t.Errorf("%d %s", code, stderr)
	}
	for _, want := range []string{"FENCEGATE_POSTGRS_URL belongs to no option; did you mean FENCEGATE_POSTGRES_URL?", "FENCEGATE_PG_PORT", "FENCEGATE_YES"} {
		if !strings.Contains(stderr, want) {
			t.Errorf("%q is missing in %s", want, stderr)
		}
	}
}

func TestAMisspeltVariableIsWarnedOfInEveryCommand(t *testing.T) {
	t.Parallel()
	const warning = "variable FENCEGATE_RESORCE belongs to no option; did you mean FENCEGATE_RESOURCE?"
	vars := map[string]string{"FENCEGATE_RESORCE": "geheim", "FENCEGATE_OF_ANOTHER_PROGRAM": "x", "FENCEGATE_POSTGRES_PORT": "7432", "FENCEGATE_GATEWAY": "http://127.0.0.1:1"}
	for _, args := range [][]string{{"version"}, {"resources", "ls"}, {"run", "--resource", "r", "true"}, {"run", "--resource", "r", "--json", "true"}} {
		_, _, stderr := cli(t, vars, args...)
		if strings.Count(stderr, "belongs to no option") != 1 || !strings.Contains(stderr, warning) || strings.Contains(stderr, "geheim") {
			t.Errorf("%q: %s", args, stderr)
		}
		if args[0] == "run" && len(args) == 5 && !strings.HasPrefix(stderr, "{") {
			t.Errorf("no JSON: %s", stderr)
		}
	}
}

func TestARefusalNamesTheVariableThatItIsAbout(t *testing.T) {
	t.Parallel()
	for variable, args := range map[string][]string{
		"FENCEGATE_ON_HELD=x": {"run", "--resource", "r", "true"}, "FENCEGATE_TTL=10ms": {"run", "--resource", "r", "true"}, "FENCEGATE_LIMIT=0": {"resources", "ls"},
		"FENCEGATE_LOG_LEVEL=loud": {"serve", "--lock", "postgres"},
	} {
		name, value, _ := strings.Cut(variable, "=")
		if code, _, stderr := cli(t, map[string]string{name: value}, args...); code != exitUsage || !strings.Contains(stderr, "(variable "+name+")") {
			t.Errorf("%s: %d %s", variable, code, stderr)
		}
		flag := "--" + strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(name, envPrefix)), "_", "-") + "=" + value
		if _, _, stderr := cli(t, map[string]string{name: value}, slices.Insert(slices.Clone(args), 1, flag)...); strings.Contains(stderr, "variable") {
			t.Errorf("%s: %s", flag, stderr)
		}
	}
}

func TestRunSaysTheLeastTTL(t *testing.T) {
	t.Parallel()
	for _, ttl := range []string{"10ms", "299ms", "-1s"} {
		if code, _, stderr := cli(t, nil, "run", "--resource", "r", "--ttl", ttl, "true"); code != exitUsage || !strings.Contains(stderr, "ttl is "+ttl+"; at least 300ms is needed") {
			t.Errorf("%s: %d %s", ttl, code, stderr)
		}
	}
}

func TestAPasswordInAFileThatEverybodyReadsIsWarnedOf(t *testing.T) {
	t.Parallel()
	file := optionFile(t, "sql:\n  url: postgres://sql:geheim@db/app\n")
	for mode, warned := range map[os.FileMode]bool{0o600: false, 0o640: false, 0o644: true} {
		if err := os.Chmod(file, mode); err != nil {
			t.Fatal(err)
		}
		code, _, stderr := cli(t, nil, "config", "check", "--config", file)
		if code != exitOK || strings.Contains(stderr, "geheim") || strings.Contains(stderr, "warning: "+file+":5: sql.url has a password in it") != warned {
			t.Errorf("%o: %d %s", mode, code, stderr)
		}
	}
	plain := optionFile(t, "")
	if err := os.Chmod(plain, 0o644); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := cli(t, nil, "config", "check", "--config", plain); code != exitOK || stderr != "" {
		t.Errorf("without a password: %d %s", code, stderr)
	}
}

// A certificate that ends soon is a warning, not an error: serve would start with it.
func TestConfigCheckWarnsOfACertificateThatEnds(t *testing.T) {
	t.Parallel()
	ends := time.Now().Add(24 * time.Hour)
	cert, key := certs.New(&x509.Certificate{NotBefore: ends.Add(-365 * 24 * time.Hour), NotAfter: ends}).Files(t)
	file := optionFile(t, "pg: {tls: {cert: "+cert+", key: "+key+"}}\n")
	code, stdout, stderr := cli(t, nil, "config", "check", "--config", file)
	want := "warning: the PostgreSQL port: certificate " + cert + " expires on " + ends.UTC().Format(time.RFC3339) + "\n"
	if code != exitOK || stderr != want {
		t.Errorf("%d %s%q, want %q", code, stdout, stderr, want)
	}
}

// pgx ignores a password file that it can't read. Commands that would connect name it, and connect to nothing.
func TestAPasswordFileThatCanNotBeReadIsRefused(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "pgpass")
	address := "postgres://u@127.0.0.1:1/d?passfile=" + missing
	file := optionFile(t, "")
	for _, args := range [][]string{
		{"migrate", "status", "--postgres-url"},
		{"config", "check", "--config", file, "--postgres-url"},
		{"serve", "--config", file, "--postgres-url"},
		{"config", "check", "--config", file, "--sql-url"},
	} {
		flag := args[len(args)-1]
		code, _, stderr := cli(t, nil, append(args, address)...)
		want := "fencegate: " + flag + " names the password file " + missing + ", which can't be read: no such file or directory\n"
		if code != exitUsage || !strings.HasPrefix(stderr, want) {
			t.Fatalf("%q: %d %q, want %q", args, code, stderr, want)
		}
	}
	code, stdout, stderr := cli(t, nil, "doctor", "--blobs", t.TempDir(), "--postgres-url", address)
	if code != exitFailed || !strings.Contains(stdout, "the address names the password file "+missing+", which can't be read") || !strings.Contains(stdout, "blobs.") {
		t.Errorf("doctor: %d %s%s", code, stdout, stderr)
	}
	code, _, stderr = cli(t, nil, "nodes", "status", "--redis", "127.0.0.1:1", "--redis-prefix", "p", "--postgres-url", address)
	if code == exitUsage || strings.Contains(stderr, missing) {
		t.Errorf("nodes status, which does not ask PostgreSQL: %d %s", code, stderr)
	}
}
