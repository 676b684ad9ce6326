package main

import (
	"bytes"
	"crypto/tls"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/fencegate/fencegate/gateway"
	"github.com/fencegate/fencegate/internal/certs"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
)

const oldToken, newToken = "6ca13d52ca70c883e0f0bb101e425a89", "0f0bb101e425a896ca13d52ca70c883e"

func TestAHangUpTellsOfSecretsThatWaitForARestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	token, file := filepath.Join(dir, "token"), filepath.Join(dir, "fencegate.yaml")
	writeFile(t, token, oldToken)
	writeFile(t, file, "api: {token-file: "+token+"}\n")
	cmd, lines, _ := startServe(t, testenv.Postgres(t), "--config", file)
	key := cmd.Args[slices.Index(cmd.Args, "--master-key-file")+1]
	hangUp := func(says string) string {
		t.Helper()
		sendHUP(t, cmd)
		return awaitLine(t, lines, says)
	}
	writeFile(t, token, newToken+"\n")
	sendHUP(t, cmd)
	awaitLine(t, lines, "the configuration was read again")
	line := awaitLine(t, lines, "SIGHUP: ")
	if !strings.Contains(line, "level=WARN") || !strings.Contains(line, "needs a restart") || !strings.Contains(line, "options=[api.token-file]") || strings.Contains(line, newToken[:8]) {
		t.Error(line)
	}
	writeFile(t, key, masterKey[:len(masterKey)-2]+"00\n")
	if line := hangUp("some files have changed"); !strings.Contains(line, `options="[api.token-file master-key-file]"`) {
		t.Error(line)
	}
	writeFile(t, token, oldToken)
	if line := hangUp("some files have changed"); !strings.Contains(line, "options=[master-key-file]") {
		t.Error(line)
	}
}

func TestFilesThatOnlyAStartReadsAreCompared(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	token, key, secret, ca := filepath.Join(dir, "token"), filepath.Join(dir, "key"), filepath.Join(dir, "secret"), filepath.Join(dir, "ca")
	for path, text := range map[string]string{token: oldToken, key: masterKey, secret: "secret"} {
		writeFile(t, path, text)
	}
	certs.Replace(t, ca, certs.New(certs.Authority("authority")).Cert)
	var o serveFlags
	o.register(&cobra.Command{})
	o.tokenFile, o.masterKeyFile, o.s3SecretKeyFile, o.redis.ca = token, key, secret, ca
	roots, err := o.redis.authorities()
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	cfg := gateway.Config{
		MasterKey: masterKey, RedisNodes: []lock.Node{{Addr: "a:1", TLS: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}},
		Logger: slog.New(slog.NewTextHandler(&log, nil)),
	}
	cfg.API.BearerToken, cfg.S3.RootSecretKey = oldToken, "secret"
	said := func() string {
		log.Reset()
		o.warnReplaced(cfg)
		return log.String()
	}
	if text := said(); text != "" {
		t.Errorf("nothing has changed: %s", text)
	}
	certs.Replace(t, ca, certs.New(certs.Authority("other")).Cert)
	for path, text := range map[string]string{token: newToken, key: strings.Replace(masterKey, "5a", "00", 1), secret: "geheim"} {
		writeFile(t, path, text)
	}
	if text := said(); !strings.Contains(text, `options="[api.token-file master-key-file s3.secret-key-file redis.tls.ca]"`) || strings.Contains(text, "geheim") {
		t.Error(text)
	}
	o.principalsFile = "principals" // reloadPrincipals reads the token
	if err := os.Remove(key); err != nil {
		t.Fatal(err)
	}
	text := said()
	for _, want := range []string{`options="[s3.secret-key-file redis.tls.ca]"`, "--master-key-file: open " + key} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in %s", want, text)
		}
	}
}
