package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestARevocationGoesToWhatIsNamed(t *testing.T) {
	t.Parallel()
	asked := ""
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		asked = r.Method + " " + r.URL.EscapedPath() + " " + string(body)
		_, _ = io.WriteString(w, `{"resource":"orders/1","token":"7"}`)
	}))
	t.Cleanup(gateway.Close)
	const nowhere = "postgres://a:geheim@127.0.0.1:1/x"
	both := map[string]string{"FENCEGATE_GATEWAY": gateway.URL, "FENCEGATE_POSTGRES_URL": nowhere}
	const revoked = "orders/1: the fence stands at 7; its former holder is refused\n"
	for name, c := range map[string]struct {
		vars         map[string]string
		args         []string
		code         int
		stdout, says string
	}{
		"the gateway of a variable":     {map[string]string{"FENCEGATE_GATEWAY": gateway.URL}, nil, exitOK, revoked, ""},
		"the gateway of a flag":         {both, []string{"--gateway", gateway.URL}, exitOK, revoked, ""},
		"in JSON":                       {both, []string{"--gateway", gateway.URL, "--json"}, exitOK, "{\n  \"resource\": \"orders/1\",\n  \"token\": \"7\"\n}\n", ""},
		"PostgreSQL by a flag":          {both, []string{"--postgres-url", nowhere}, exitUnavailable, "", "hint: check --postgres-url"},
		"PostgreSQL by a variable":      {map[string]string{"FENCEGATE_POSTGRES_URL": nowhere}, nil, exitUnavailable, "", "hint: check --postgres-url"},
		"two variables and no flag":     {both, nil, exitUsage, "", "FENCEGATE_GATEWAY and FENCEGATE_POSTGRES_URL are both set: give --gateway or --postgres-url"},
		"PostgreSQL without a database": {both, []string{"--postgres-url", ""}, exitUsage, "", "--postgres-url is missing"},
	} {
		asked = ""
		code, stdout, stderr := cli(t, c.vars, append([]string{"revoke", "orders/1", "--by", "ops"}, c.args...)...)
		if code != c.code || stdout != c.stdout || !strings.Contains(stderr, c.says) || strings.Contains(stderr, "geheim") {
			t.Errorf("%s: %d %q %q", name, code, stdout, stderr)
		}
		if want := `POST /v1/resources/orders/1/revoke {"holder":"ops"}`; (asked == want) != (code == exitOK) {
			t.Errorf("%s: asked %q", name, asked)
		}
	}
}
