package accessfile_test

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/gateway/access/accessfile"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var hash = access.DigestOf("the token").String()

const good = `# who may do what
principals:
  - name: worker
    tokens:
      - HASH
    allow:
      - resources: ["orders/*", 'stock/7']
        verbs: [acquire, sql]
      - verbs: metrics
  - name: ops
    gateway_token: true
    allow:
      - {resources: "*", verbs: [inspect, revoke, sessions]}
  - name: s3:app
    allow:
      - resources: jobs
        verbs: acquire
`

func parse(text, token string) ([]access.Definition, error) {
	f, err := accessfile.Parse([]byte(strings.ReplaceAll(text, "HASH", hash)), token)
	return f.Principals, err
}

func TestAFileIsReadAsItSays(t *testing.T) {
	t.Parallel()
	got, err := parse(good, "gateway token")
	if err != nil {
		t.Fatal(err)
	}
	verbs := func(all ...access.Verb) []access.Verb { return all }
	want := []access.Definition{
		{Name: "worker", Tokens: []access.Digest{access.DigestOf("the token")}, Rules: []access.Rule{
			{Resources: "orders/*", Verbs: verbs(access.Acquire, access.SQL)},
			{Resources: "stock/7", Verbs: verbs(access.Acquire, access.SQL)},
			{Verbs: verbs(access.Metrics)},
		}},
		{Name: "ops", Tokens: []access.Digest{access.DigestOf("gateway token")}, Rules: []access.Rule{{Resources: "*", Verbs: verbs(access.Inspect, access.Revoke, access.Sessions)}}},
		{Name: "s3:app", Rules: []access.Rule{{Resources: "jobs", Verbs: verbs(access.Acquire)}}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// Each case changes one line of the valid file; the error names that line and what is wrong.
func TestWhatIsNotUnderstoodIsNamedWithItsLine(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ from, to, says string }{
		{"    tokens:\n", "    token:\n", `line 4: unknown field "token" in a principal; it has allow, certificates, gateway_token, jwt, name, tokens`},
		{"principals:", "principal:", `line 2: unknown field "principal"`},
		{"verbs: metrics", "verb: metrics", `line 9: unknown field "verb" in an entry of allow`},
		{"verbs: metrics", "verbs: metric", `line 9: verbs have the unknown "metric"; there are acquire, manage`},
		{"- HASH", "- 6ca13d", "line 5: token is not a SHA-256"},
		{"- HASH", "-", "line 5: tokens: a text is needed"},
		{"name: worker", "name: [worker]", "line 3: name: a text is needed"},
		{"name: worker", "name: worker\n    name: again", `line 4: field "name" is repeated`},
		{"name: ops", "name: worker", `line 10: name "worker" is that of another principal`},
		{"gateway_token: true", "tokens: [HASH]", `line 10: tokens have one of "worker"`},
		{"gateway_token: true", "gateway_token: yes please", "line 11: gateway_token: true or false is needed"},
		{`{resources: "*",`, "{resources: *,", `line 13: a "*" without quotes begins an alias in YAML: write "*"`},
		{`"*"`, "*all", `a "*" without quotes`},
		{`["orders/*", 'stock/7']`, `"orders/*/1"`, `line 7: resources are "orders/*/1": a "*" stands at the end only`},
		{"resources: jobs", "resources: &x jobs", "line 16: anchors, aliases and tags"},
		{"resources: jobs", "resources: !!str jobs", "line 16: anchors, aliases and tags"},
		{"resources: jobs", "resources: ''", "line 16: resources have an empty name"},
		{"resources: jobs", "resources: []", "line 16: resources: the list is empty"},
		{"resources: jobs\n", "verbs: acquire\n        x: 1\n", `line 17: unknown field "x"`},
		{"  - name: s3:app", "---\nprincipals:\n  - name: s3:app", "has a second document"},
		{"principals:", "principals: [", "is not valid YAML: line"},
	} {
		text := strings.Replace(good, c.from, c.to, 1)
		if text == good {
			t.Fatalf("%q changes nothing", c.from)
		}
		if _, err := parse(text, "gateway token"); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%q: got %v, want %q", c.to, err, c.says)
		}
	}
	for name, text := range map[string]string{"a comment only": "# none\n", "a list": "- a\n", "a text": "principals\n", "null": "principals:\n"} {
		if _, err := parse(text, ""); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestTheGatewaysTokenIsSomebodys(t *testing.T) {
	t.Parallel()
	if _, err := parse(good, ""); err == nil || !strings.Contains(err.Error(), "line 11: gateway_token needs --token-file") {
		t.Errorf("no token: %v", err)
	}
	unnamed := strings.Replace(good, "gateway_token: true", "gateway_token: false\n    tokens: ["+strings.Repeat("ab", 32)+"]", 1)
	if all, err := parse(unnamed, "gateway token"); !errors.Is(err, accessfile.ErrUnnamedToken) || len(all) != 3 {
		t.Errorf("a token that is nobody's: %v, %d principals", err, len(all))
	}
	if _, err := parse(unnamed, ""); err != nil {
		t.Errorf("no token, and nobody has it: %v", err)
	}
	twice := strings.Replace(good, "      - HASH", "      - HASH\n    gateway_token: true", 1)
	if _, err := parse(twice, "gateway token"); err == nil || !strings.Contains(err.Error(), `gateway_token is already assigned to "worker"`) {
		t.Errorf("two have it: %v", err)
	}
}

func TestAPrincipalMayBeAllowedNothing(t *testing.T) {
	t.Parallel()
	all, err := parse("principals:\n  - name: off\n    tokens: [HASH]\n    allow: []\n", "")
	if err != nil || len(all) != 1 || len(all[0].Rules) != 0 {
		t.Errorf("%v, %v", all, err)
	}
}

func TestAnErrorShowsNoToken(t *testing.T) {
	t.Parallel()
	const token = "3f7c9d1e5b2a4860c1d2e3f405162738"
	for _, text := range []string{
		"principals:\n  - name: a\n    tokens: [" + token + "]\n", "principals:\n  - name: a\n    " + token + ": x\n", token + "\n", "principals: {" + token + "}\n",
	} {
		if _, err := parse(text, ""); err == nil || strings.Contains(err.Error(), token[:8]) {
			t.Errorf("got %v", err)
		}
	}
}

func TestOnlyAWholeRegularFileIsRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	whole := strings.ReplaceAll(good, "HASH", hash)
	if _, err := accessfile.Read(write("good", whole), "t"); err != nil {
		t.Error(err)
	}
	for path, says := range map[string]string{
		filepath.Join(dir, "absent"): "no such file",
		dir:                          "is not a regular file",
		write("empty", " \n"):        "is empty",
		write("cut", strings.TrimSuffix(whole, "\n")):            "its last line has no line break",
		write("long", "#"+strings.Repeat("x", 1<<20)+"\n"+whole): "more than 1048576 bytes",
	} {
		if _, err := accessfile.Read(path, "t"); err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), path) {
			t.Errorf("got %v, want %q", err, says)
		}
	}
}

const issued = `principals:
  - name: nightly
    jwt:
      - issuer: https://idp.example
        claims: {sub: nightly, groups: jobs}
    allow: [{resources: "jobs/*", verbs: acquire}]
issuers:
  - issuer: https://idp.example
    audience: fencegate
    algorithms: [RS256, ES256]
    keys: https://idp.example/jwks.json
`

func TestTokensOfOthersAreReadAsTheFileSays(t *testing.T) {
	t.Parallel()
	f, err := accessfile.Parse([]byte(issued), "")
	if err != nil {
		t.Fatal(err)
	}
	want := []access.Claims{{Issuer: "https://idp.example", Equal: map[string]string{"sub": "nightly", "groups": "jobs"}}}
	if !reflect.DeepEqual(f.Principals[0].Issued, want) || len(f.Principals[0].Tokens) != 0 {
		t.Errorf("got %+v", f.Principals)
	}
	if i := f.Issuers[0]; i.URL != "https://idp.example" || i.Audience != "fencegate" || len(i.Algorithms) != 2 || i.Keys != "https://idp.example/jwks.json" {
		t.Errorf("got %+v", i)
	}
	for _, c := range []struct{ from, to, says string }{
		{"audience: fencegate", "audience: ''", "line 8: audience is missing"},
		{"[RS256, ES256]", "[RS256, HS256]", `line 8: algorithms have "HS256"; allowed are RS256`},
		{"[RS256, ES256]", "none", `line 8: algorithms have "none"`},
		{"keys: https", "keys: http", "line 8: keys are not at an https address"},
		{"keys: https", "keys_file: f\n    keys: https", "line 8: keys or keys_file is needed, and not both"},
		{"keys: https", "jku: https", `line 11: unknown field "jku" in an issuer`},
		{"claims: {sub: nightly, groups: jobs}", "claims: {}", `line 2: jwt names no claims: every token of "https://idp.example"`},
		{"claims: {sub: nightly, groups: jobs}", "claims: nightly", "line 5: claims: names with their values are needed"},
		{"claims: {sub: nightly, groups: jobs}", "claims: {sub: nightly, sub: other}", `line 5: claim "sub" is repeated`},
		{"      - issuer: https://idp.example", "      - issuer: https://other.example", `line 2: "nightly" has tokens of issuer "https://other.example", which is not among issuers`},
		{"name: nightly", "name: s3:nightly", "line 2: tokens are not allowed for s3:KEY"},
		{"  - issuer: https://idp.example\n    audience", "  - {issuer: https://idp.example, audience: a, algorithms: RS256, keys: 'https://x'}\n  - issuer: https://idp.example\n    audience", `line 9: issuer "https://idp.example" is repeated`},
	} {
		text := strings.Replace(issued, c.from, c.to, 1)
		if text == issued {
			t.Fatalf("%q changes nothing", c.from)
		}
		if _, err := accessfile.Parse([]byte(text), ""); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%q: got %v, want %q", c.to, err, c.says)
		}
	}
}

func TestNamesOfCertificatesAreReadAsTheFileSays(t *testing.T) {
	t.Parallel()
	const file = "principals:\n  - name: a\n    certificates: [dns:a.example]\n  - name: b\n    certificates: ['uri:spiffe://x/b', email:b@x.example]\n"
	all, err := parse(file, "")
	if err != nil || !slices.Equal(all[1].Certificates, []string{"uri:spiffe://x/b", "email:b@x.example"}) {
		t.Errorf("%+v, %v", all, err)
	}
	for name, says := range map[string]string{
		"a.example": "a name is dns:NAME", "cn:a": "a name is dns:NAME", "'dns:'": "a name is dns:NAME", "'dns:*.example'": "without *",
		"dns:A.example": "small letters", "dns:a.example": `certificates have one of "a"`,
	} {
		if _, err := parse(strings.Replace(file, "'uri:spiffe://x/b'", name, 1), ""); err == nil || !strings.Contains(err.Error(), "line 4: ") || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
