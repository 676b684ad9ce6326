package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/fencegate/fencegate/internal/testenv"
)

// sendHUP has a gateway read its files again.
func sendHUP(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
}

// withoutGrant connects to the PostgreSQL port without a grant.
func withoutGrant(t *testing.T, address string) error {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), address)
	if err == nil {
		_ = conn.Close(t.Context())
	}
	return err
}

func TestAHangUpHasTheFileOfOptionsReadAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "fencegate.yaml")
	const first = "pg:\n  policy: ['*=open']\nlog: {level: info}\nsweep: {rate: 1}\napi: {max-connections: 9}\n"
	writeFile(t, file, first)
	cmd, lines, address := startServe(t, testenv.Postgres(t), "--config", file, "--api-max-connections", "7")
	hangUp := func(text, says string) string {
		t.Helper()
		if text != "" {
			writeFile(t, file, text)
		}
		sendHUP(t, cmd)
		return awaitLine(t, lines, says)
	}
	wants := func(line string, all ...string) {
		t.Helper()
		for _, want := range all {
			if !strings.Contains(line, want) {
				t.Errorf("%q is missing in %s", want, line)
			}
		}
	}
	plain := func() error { return withoutGrant(t, address) }
	const read, refused, waits = "the configuration was read again", "the configuration is refused", "some changed options need a restart"
	wants(hangUp("", read), "applied=[]")

	// A file that serve would not start with changes nothing, though its policy is valid.
	const strict = "pg:\n  policy: ['*=grant-required']\n"
	for text, reason := range map[string]string{
		strict + "swep: {}\n":                             ":3: unknown key swep; did you mean sweep?",
		strict + "log: {level: geheim}\n":                 "--log-level",
		strict + "max-ttl: -1s\n":                         "--max-ttl is negative",
		strict + "lame-duck: 1s":                          "its last line has no line break",
		strict + "pg: {}\n":                               "pg is repeated",
		strict + "api: {tls: {cert: c}}\n":                "--api-tls-cert and --api-tls-key are needed together",
		"pg: {policy: ['*=shut']}\n":                      "--pg-policy",
		strict + "max-ttl: 48h\n":                         "--max-ttl is 48h0m0s; allowed is",
		strict + "metrics: {listen: '127.0.0.1:99999'}\n": "the port must be 0 to 65535",
		strict + "s3: {blobs: x, listen: '127.0.0.1:9'}\nmetrics: {listen: '127.0.0.1:9'}\n": "the S3 port listens there already",
		strict + "s3: {blobs: x, listen: '127.0.0.1:9', buckets: [Orders_X=key]}\n":          "S3 wants 3 to 63",
	} {
		wants(hangUp(text, refused), reason, "level=ERROR")
		if err := plain(); err != nil {
			t.Errorf("after %q: %v", text, err)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	wants(hangUp("", refused), "no such file")

	// Reloadable options apply. The log names the others while they differ. A flag takes precedence over the file.
	const second = strict + "log: {level: debug}\nsweep: {rate: 2}\nmax-ttl: 1m\napi: {max-connections: 10}\n"
	wants(hangUp(second, read), "applied=\"[log.level pg.policy]\"")
	wants(awaitLine(t, lines, waits), "options=\"[max-ttl sweep.rate]\"", "level=WARN")
	if err := plain(); err == nil || !strings.Contains(err.Error(), "ZF002") {
		t.Errorf("a session without a grant: %v; want ZF002", err)
	}
	wants(hangUp(second, read), "applied=[]")
	wants(awaitLine(t, lines, waits), "options=\"[max-ttl sweep.rate]\"")

	// A file without policies does not open the port.
	wants(hangUp("sweep: {rate: 1}\n", read), "applied=[log.level]")
	wants(awaitLine(t, lines, waits), "options=[pg.policy]")
	if err := plain(); err == nil || !strings.Contains(err.Error(), "ZF002") {
		t.Errorf("after the policies have gone: %v; want ZF002", err)
	}

	// Rules may move to their own file, and the log level may exclude warnings.
	rules := filepath.Join(dir, "rules")
	writeFile(t, rules, "policy *=open\n")
	wants(hangUp("pg: {policy-file: "+rules+"}\nsweep: {rate: 1}\n", read), "pg.policy-file", "pg.policy")
	awaitLine(t, lines, "the rules of the PostgreSQL port were replaced")
	if err := plain(); err != nil {
		t.Errorf("under the rules of the file: %v", err)
	}
	// "read again" is no warning
	wants(hangUp("pg: {policy-file: "+rules+"}\nlog: {level: warn}\nsweep: {rate: 3}\n", "SIGHUP: "), waits, "sweep.rate")
}

// A truncated list of policies does not open the port.
func TestAFileThatLostItsLastPolicyDoesNotOpenThePort(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "fencegate.yaml")
	writeFile(t, file, "pg:\n  policy:\n  - migrator=open\n  - '*=grant-required'\n")
	cmd, lines, address := startServe(t, testenv.Postgres(t), "--config", file)
	writeFile(t, file, "pg:\n  policy:\n  - migrator=open\n")
	sendHUP(t, cmd)
	if line := awaitLine(t, lines, "some changed options need a restart"); !strings.Contains(line, "options=[pg.policy]") {
		t.Error(line)
	}
	if err := withoutGrant(t, address); err == nil || !strings.Contains(err.Error(), "ZF002") {
		t.Errorf("a session without a grant: %v; want ZF002", err)
	}
}

// A right that was removed ends although the file of options is refused.
func TestAFileOfRulesIsReadAgainBesideARefusedFileOfOptions(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, rules := filepath.Join(dir, "fencegate.yaml"), filepath.Join(dir, "rules")
	writeFile(t, rules, "policy *=open\n")
	options := "pg: {policy-file: " + rules + "}\n"
	writeFile(t, file, options)
	cmd, lines, address := startServe(t, testenv.Postgres(t), "--config", file)
	writeFile(t, file, options+"swep: {}\n")
	writeFile(t, rules, "policy *=grant-required\n")
	sendHUP(t, cmd)
	awaitLine(t, lines, "the configuration is refused")
	awaitLine(t, lines, "the rules of the PostgreSQL port were replaced")
	if err := withoutGrant(t, address); err == nil || !strings.Contains(err.Error(), "ZF002") {
		t.Errorf("a session without a grant: %v; want ZF002", err)
	}
}

// A running gateway has its token; the next start would not.
func TestAFileWithoutTheTokenThatAnAPINeedsIsRefused(t *testing.T) {
	t.Parallel()
	token := filepath.Join(t.TempDir(), "token")
	writeFile(t, token, "6ca13d52ca70c883e0f0bb101e425a89")
	file := optionFile(t, "api: {listen: '0.0.0.0:7070', token-file: "+token+"}\n")
	o, cmd, e := &serveFlags{}, &cobra.Command{}, env{lookup: func(string) (string, bool) { return "", false }}
	o.register(cmd)
	o.options.path = file
	if err := o.options.resolve(e, cmd); err != nil {
		t.Fatal(err)
	}
	if _, err := o.again(e, false); err != nil {
		t.Errorf("unchanged: %v", err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, file, strings.Replace(string(text), ", token-file: "+token, "", 1))
	if _, err := o.again(e, false); err == nil || !strings.Contains(err.Error(), "needs a bearer token") {
		t.Errorf("without the token: %v", err)
	}
	if _, err := o.again(e, true); err != nil {
		t.Errorf("where one is made: %v", err)
	}
}
