package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/internal/testenv"
)

const auditedPrincipals = `principals:
  - name: worker
    tokens: [WORKER]
    allow: [{resources: "orders/*", verbs: [acquire]}]
  - name: ops
    tokens: [OPS]
    allow: [{resources: "*", verbs: [VERBS]}]
`

// audited is a gateway as serve runs it, with its log.
type audited struct {
	t       *testing.T
	cmd     *exec.Cmd
	api     string
	lines   *bufio.Scanner
	all     strings.Builder
	secrets []string // they may be in no line
}

// says waits for a line with these words, and expects others in it.
func (a *audited) says(words string, wants ...string) {
	a.t.Helper()
	defer time.AfterFunc(time.Minute, func() { _ = a.cmd.Process.Kill() }).Stop() // that ends the log
	for a.lines.Scan() {
		line := a.lines.Text()
		a.all.WriteString(line + "\n")
		if !strings.Contains(line, words) {
			continue
		}
		for _, want := range wants {
			if !strings.Contains(line, want) {
				a.t.Errorf("%q is missing in %s", want, line)
			}
		}
		return
	}
	a.t.Fatalf("the log ends without %q", words)
}

// ask makes a request with an id, and returns the answer's fields.
func (a *audited) ask(token, id, path, body string) map[string]any {
	a.t.Helper()
	req, err := http.NewRequestWithContext(a.t.Context(), http.MethodPost, a.api+path, bytes.NewReader([]byte(body)))
	if err != nil {
		a.t.Fatal(err)
	}
	for name, value := range map[string]string{"Authorization": "Bearer " + token, "Content-Type": "application/json", "X-Request-Id": id} {
		req.Header.Set(name, value)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		a.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer := map[string]any{}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		a.t.Fatal(err)
	}
	return answer
}

// The log has acquisitions, revocations, denials, and changes of principals, policies and options, each with its
// principal and, for requests, its id. No line has a token, a grant, a handle, a key or a password.
func TestTheLogTellsWhoDidWhatAndNoSecret(t *testing.T) {
	t.Parallel()
	pg, dir := testenv.Postgres(t), t.TempDir()
	role, err := pgx.ParseConfig(pg.WriterURL)
	if err != nil {
		t.Fatal(err)
	}
	addr, err := redisserver.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	const worker, ops = "the secret token of the worker", "the secret token of the operator"
	principals, policies, options := filepath.Join(dir, "principals"), filepath.Join(dir, "policies"), filepath.Join(dir, "fencegate.yaml")
	write := func(verbs, policy, level string) {
		t.Helper()
		writeFile(t, principals, strings.NewReplacer("WORKER", access.DigestOf(worker).String(), "OPS", access.DigestOf(ops).String(),
			"VERBS", verbs).Replace(auditedPrincipals))
		writeFile(t, policies, policy)
		writeFile(t, options, "log: {level: "+level+"}\n")
	}
	write("revoke", "policy *=open\n", "info")
	cmd, lines, _ := startServe(t, pg, "--api-listen", addr, "--principals", principals, "--pg-policy-file", policies, "--config", options)
	a := &audited{t: t, cmd: cmd, api: "http://" + addr, lines: lines, secrets: []string{
		worker, ops, access.DigestOf(worker).String(), access.DigestOf(ops).String(), strings.Repeat("5a", 32), ":" + role.Password + "@",
	}}

	lease := a.ask(worker, "request-1", "/v1/leases", `{"resource":"orders/1","ttl":"30s","holder":"me"}`)
	a.says("a lease was acquired", "resource=orders/1 token=1", "audit.principal=worker", "audit.client=127.0.0.1:", "request_id=request-1")
	a.ask(ops, "request-2", "/v1/resources/orders/1/revoke", `{}`)
	a.says("a resource was revoked", "resource=orders/1 token=2", "audit.principal=ops", "audit.client=127.0.0.1:", "request_id=request-2")
	a.ask(worker, "request-3", "/v1/resources/orders/1/revoke", `{}`)
	a.says("a request was denied", "verb=revoke resource=orders/1", "audit.principal=worker", "request_id=request-3")
	_, seal, _ := strings.Cut(text(lease, "grant"), ".")
	a.secrets = append(a.secrets, seal, text(lease, "handle"))

	write("revoke, inspect", "policy *=grant-required\n", "debug")
	sendHUP(t, cmd)
	a.says("the configuration was read again", "applied=[log.level]", "file="+options)
	a.says("the rules of the PostgreSQL port were replaced", "*=open", "*=grant-required")
	a.says("the principals were replaced", "changed=[ops]", "removed=[]")
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for a.lines.Scan() { // to the end
		a.all.WriteString(a.lines.Text() + "\n")
	}
	_ = cmd.Wait()
	for _, secret := range a.secrets {
		if secret == "" || strings.Contains(a.all.String(), secret) {
			t.Errorf("the log shows %q:\n%s", secret, a.all.String())
		}
	}
}

func text(answer map[string]any, name string) string { s, _ := answer[name].(string); return s }
