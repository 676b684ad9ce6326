package optionfile_test

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/fencegate/fencegate/internal/optionfile"
)

var known = map[string]optionfile.Kind{
	"lock": optionfile.Text, "api.listen": optionfile.Text, "api.max-connections": optionfile.Number, "api.tls.cert": optionfile.Text,
	"redis.nodes": optionfile.List, "redis.init": optionfile.Bool, "pg.idle-timeout": optionfile.Duration, "pg.policy": optionfile.List,
}

func write(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "f.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const good = `# a gateway
lock: postgres
api:
  listen: 127.0.0.1:7070
  max-connections: 4096
  tls: {cert: /etc/cert.pem}
redis:
  nodes:
    - a:1,b:2
    - "c:3"
  init: true
pg:
  idle-timeout: 1h30m
  policy: "*=open"
`

func TestAFileIsReadAsItSays(t *testing.T) {
	t.Parallel()
	path := write(t, good)
	file, err := optionfile.Read(path, known)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]optionfile.Value{
		"lock":                {Texts: []string{"postgres"}, Line: 2},
		"api.listen":          {Texts: []string{"127.0.0.1:7070"}, Line: 4},
		"api.max-connections": {Texts: []string{"4096"}, Line: 5},
		"api.tls.cert":        {Texts: []string{"/etc/cert.pem"}, Line: 6},
		"redis.nodes":         {Texts: []string{"a:1,b:2", "c:3"}, Line: 8},
		"redis.init":          {Texts: []string{"true"}, Line: 11},
		"pg.idle-timeout":     {Texts: []string{"1h30m"}, Line: 13},
		"pg.policy":           {Texts: []string{"*=open"}, Line: 14},
	}
	if !reflect.DeepEqual(file.Values, want) || file.AnyReads {
		t.Errorf("got %v, %v\nwant %v", file.Values, file.AnyReads, want)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if file, err := optionfile.Read(path, known); err != nil || !file.AnyReads {
		t.Errorf("a file that everybody may read: %+v, %v", file, err)
	}
	for _, text := range []string{"{}\n", "api:\npg: # all of it is commented out\n", "---\nlock: \"\"\n...\n", "redis: {nodes: []}\n", "pg: {idle-timeout: 0}\n"} {
		if _, err := optionfile.Read(write(t, text), known); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// Each case changes one line of the good file. The error names the line, and no value.
func TestWhatIsNotUnderstoodIsNamedWithItsLine(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ from, to, says string }{
		{"  listen: 127", "  listn: 127", "f.yaml:4: unknown key api.listn; did you mean api.listen?"},
		{"lock: postgres", "locks: geheim", "f.yaml:2: unknown key locks; did you mean lock?"},
		{"lock: postgres", "api_listen: geheim", "f.yaml:2: unknown key api_listen; did you mean api.listen?"},
		{"lock: postgres", "password: geheim", "f.yaml:2: unknown key password"},
		{"redis:", "radis:", "f.yaml:7: unknown key radis; did you mean redis?"},
		{"  tls: {", "  tsl: {", "f.yaml:6: unknown key api.tsl; did you mean api.tls?"},
		{"{cert:", "{crt:", "f.yaml:6: unknown key api.tls.crt; did you mean api.tls.cert?"},
		{"lock: postgres", `"lock\n ": geheim`, `f.yaml:2: unknown key "lock\n "; did you mean lock?`},
		{"lock: postgres", strings.Repeat("geheim", 40) + ": geheim", "f.yaml:2: unknown key " + strings.Repeat("geheim", 10) + "…"},
		{"4096", "many geheim", "f.yaml:5: api.max-connections: a whole number is needed"},
		{"4096", "4096.5", "a whole number is needed"},
		{"4096", "99999999999999999999999", "a whole number is needed"},
		{"4096", "'4096'", "a whole number is needed"},
		{"1h30m", "90", "f.yaml:13: pg.idle-timeout: a duration is needed, with its unit, such as 30s or 12h"},
		{"1h30m", "geheim", "a duration is needed"},
		{"1h30m", "90000000h", "a duration is needed"},
		{"init: true", "init: yes", "f.yaml:11: redis.init: true or false is needed"},
		{"init: true", "init: 1", "true or false is needed"},
		{"127.0.0.1:7070", "7070", "f.yaml:4: api.listen: a text is needed: put it in quotes"},
		{"127.0.0.1:7070", "[geheim]", "f.yaml:4: api.listen: one value is needed, not a list or a mapping"},
		{"127.0.0.1:7070", "{geheim: 1}", "one value is needed"},
		{"127.0.0.1:7070", "", "f.yaml:4: api.listen: has no value"},
		{"127.0.0.1:7070", "~", "has no value"},
		{`"c:3"`, "7", "f.yaml:10: redis.nodes: a text is needed"},
		{`"c:3"`, "", "f.yaml:10: redis.nodes: has no value"},
		{`"c:3"`, "[geheim]", "f.yaml:10: redis.nodes: one value is needed"},
		{"{cert: /etc/cert.pem}", "geheim", "f.yaml:6: api.tls is a section: a mapping is needed"},
		{"{cert: /etc/cert.pem}", "[geheim]", "f.yaml:6: api.tls is a section"},
		{"lock: postgres", "lock: postgres\nlock: geheim", "f.yaml:3: lock is repeated, also in line 2"},
		{"init: true", "nodes: [geheim]", "f.yaml:11: redis.nodes is repeated, also in line 8"},
		{"pg:", "api:", "f.yaml:12: api is repeated, also in line 3"},
		{"lock: postgres", "lock: &geheim postgres", "f.yaml:2: anchors and tags are not read"},
		{"lock: postgres", "lock: !!str postgres", "f.yaml:2: anchors and tags are not read"},
		{"lock: postgres", "? [geheim]\n: 1", "f.yaml:2: a key is one word"},
		{`"*=open"`, "*=open", `f.yaml:14: a "*" or "&" without quotes`},
		{`"*=open"`, "*geheim", `f.yaml: a "*" without quotes`},
		{"  tls: {cert: /etc/cert.pem}", "  <<: {listen: geheim}", "f.yaml:6: merges (<<) are not read"},
		{"pg:", "---\npg:", "f.yaml: has a second document"},
		{"redis:", "redis: [", "f.yaml:8: is not valid YAML"},
		{"lock: postgres", "lock: postgres\n\tgeheim: 1", "is not valid YAML"},
		{"lock: postgres", "lock: \"\\geheim\"", "f.yaml:2: is not valid YAML"},
	} {
		text := strings.Replace(good, c.from, c.to, 1)
		if text == good {
			t.Fatalf("%q changes nothing", c.from)
		}
		_, err := optionfile.Read(write(t, text), known)
		if err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "geheim") && !strings.Contains(c.says, "geheim") {
			t.Errorf("%q: got %v, want %q", c.to, err, c.says)
		}
	}
}

func TestAllProblemsAreToldUpToABound(t *testing.T) {
	t.Parallel()
	_, err := optionfile.Read(write(t, "api: {listn: 1, listen: 2}\nlok: 1\n"), known)
	problems, _ := errors.AsType[optionfile.Problems](err)
	if len(problems) != 3 || !strings.HasSuffix(err.Error(), "(and 2 more)") || problems[2].Line != 2 {
		t.Errorf("%v: %q", err, problems)
	}
	_, err = optionfile.Read(write(t, "lock: &a geheim\napi:\n  listen: *a\npg: {policy: [*a]}\nredis: *a\n"), known)
	problems, _ = errors.AsType[optionfile.Problems](err)
	if len(problems) != 4 {
		t.Fatalf("aliases: %q", problems)
	}
	for i, p := range problems[1:] {
		if !strings.Contains(p.Reason, "aliases are not read") || p.Line != i+3 {
			t.Errorf("an alias: %v", p)
		}
	}
	many := strings.Repeat("x", 20) + strings.Repeat("\nyyyyyyyyyyyyyyyyyyyyy: 1", 40_000)[1:] + "\n"
	begin := time.Now()
	_, err = optionfile.Read(write(t, many), known)
	if problems, _ := errors.AsType[optionfile.Problems](err); len(problems) == 0 || len(problems) > 60 || time.Since(begin) > time.Minute {
		t.Errorf("%d problems after %s", len(problems), time.Since(begin))
	}
}

func TestFilesAreReadWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	for text, reason := range map[string]string{
		"":                 "is empty",
		" \n\n":            "is empty",
		"# a comment\n":    "has no options",
		"---\n":            "has no options",
		"null\n":           "has no options",
		"- a\n":            "is no mapping of options",
		"geheim\n":         "is no mapping of options",
		"lock: postgres":   "its last line has no line break",
		"api:\n  listen: ": "its last line has no line break",
		"lock: postgres\n" + strings.Repeat("#", optionfile.MaxBytes) + "\n": "has more than 1048576 bytes",
		"\xfflock: x\n": "is not valid YAML",
		"lock: \x00\n":  "is not valid YAML",
	} {
		if _, err := optionfile.Read(write(t, text), known); err == nil || !strings.Contains(err.Error(), reason) || strings.Contains(err.Error(), "geheim") {
			t.Errorf("%.40q: %v, want %q", text, err, reason)
		}
	}
	dir := t.TempDir()
	for path, reason := range map[string]string{dir: "is not a regular file", filepath.Join(dir, "none"): "no such file", os.DevNull: "is not a regular file"} {
		if _, err := optionfile.Read(path, known); err == nil || !strings.Contains(err.Error(), path+": ") || !strings.Contains(err.Error(), reason) {
			t.Errorf("%s: %v, want %q", path, err, reason)
		}
	}
}

// A small file that expands to gigabytes, or nests without end, is refused at once.
func TestBombsAreRefusedAtOnce(t *testing.T) {
	t.Parallel()
	var laughs strings.Builder
	laughs.WriteString("a: &a [x, x, x, x, x, x, x, x, x]\n")
	for c := 'b'; c <= 'z'; c++ {
		before := string(c - 1)
		laughs.WriteString(string(c) + ": &" + string(c) + " [" + strings.Repeat("*"+before+", ", 8) + "*" + before + "]\n")
	}
	for name, text := range map[string]string{
		"billion laughs":    laughs.String(),
		"a cycle":           "api: &a {tls: *a}\n",
		"merges":            "lock: x\napi: &a {listen: x}\npg: {<<: [*a, *a, *a]}\n",
		"nested lists":      "lock: " + strings.Repeat("[", 500_000) + "\n",
		"nested mappings":   "lock: " + strings.Repeat("{a: ", 200_000) + "\n",
		"nested, and whole": "api: " + strings.Repeat("[", 5_000) + strings.Repeat("]", 5_000) + "\n",
	} {
		begin := time.Now()
		if _, err := optionfile.Read(write(t, text), known); err == nil {
			t.Errorf("%s: accepted", name)
		}
		if took := time.Since(begin); took > time.Minute {
			t.Errorf("%s: it took %s", name, took)
		}
	}
}

func TestTheNearestNameIsNear(t *testing.T) {
	t.Parallel()
	names := []string{"api.listen", "pg.listen", "s3.listen", "redis.nodes", "lock", "sql"}
	for name, want := range map[string]string{
		"api.listne": "api.listen", "API.Listen": "api.listen", "pg-listen": "pg.listen", "redis.node": "redis.nodes", "loc": "lock", "colk": "lock", "sqk": "sql", "ttl": "",
		"password": "", "": "", "quite.another": "", strings.Repeat("x", 10_000): "",
	} {
		if got := optionfile.Nearest(name, names); got != want {
			t.Errorf("%.20q: %q, want %q", name, got, want)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add(good)
	f.Add("a: &a [*a]\n")
	f.Fuzz(func(t *testing.T, text string) {
		if file, err := optionfile.Read(write(t, text), known); (file == nil) == (err == nil) {
			t.Errorf("%v, %v", file, err)
		}
	})
}
