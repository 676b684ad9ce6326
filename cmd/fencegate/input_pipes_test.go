package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fencegate/fencegate/internal/certs"
	"github.com/fencegate/fencegate/internal/testenv"
)

func makePipe(t *testing.T, path string) string {
	t.Helper()
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Opening a pipe without a writer blocks: serve would neither start nor end, nor say why.
func TestServeReadsNoPipe(t *testing.T) {
	t.Parallel()
	cert, key := certs.New(certs.For("server")).Files(t)
	pipe := makePipe(t, filepath.Join(t.TempDir(), "pipe"))
	for _, args := range []string{
		"--token-file PIPE", "--master-key-file PIPE", "--pg-policy-file PIPE", "--principals PIPE", "--config PIPE",
		"--s3-access-key a --s3-secret-key-file PIPE", "--lock redis --redis a:1 --redis-password-file PIPE", "--lock redis --redis a:1 --redis-tls-ca PIPE",
		"--lock redis --redis a:1 --redis-tls-cert PIPE --redis-tls-key KEY", "--lock redis --redis a:1 --redis-tls-cert CERT --redis-tls-key PIPE",
		"--api-tls-cert PIPE --api-tls-key KEY", "--pg-tls-cert CERT --pg-tls-key PIPE", "--pg-tls-cert CERT --pg-tls-key KEY --pg-tls-client-ca PIPE",
	} {
		var given []string
		if !strings.Contains(args, "--config") {
			given = []string{"--config", optionFile(t, "")}
		}
		given = append(given, strings.Fields(strings.NewReplacer("PIPE", pipe, "CERT", cert, "KEY", key).Replace(args))...)
		for _, command := range []string{"config check", "serve"} {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			cmd := commandOf(ctx, t, t.TempDir(), append(strings.Fields(command), given...)...)
			said, _ := cmd.CombinedOutput()
			if code := cmd.ProcessState.ExitCode(); code != exitUsage || !strings.Contains(string(said), pipe+": is not a regular file") {
				t.Errorf("%s %s: %d %s (%v)", command, args, code, said, ctx.Err())
			}
			cancel()
		}
	}
}

func TestAHangUpReadsNoPipe(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "policies")
	writeFile(t, file, "policy *=open\n")
	cmd, lines, _ := startServe(t, testenv.Postgres(t), "--pg-policy-file", file)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	makePipe(t, file)
	sendHUP(t, cmd)
	if line := awaitLine(t, lines, "the policies are refused"); !strings.Contains(line, "is not a regular file") {
		t.Error(line)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for lines.Scan() { // to the end
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("it ended with %v", err)
	}
}

// A command of a client takes its token from a pipe, as of <(...), and a signal ends the wait for it.
func TestAClientReadsItsTokenFromAPipe(t *testing.T) {
	t.Parallel()
	pipe := makePipe(t, filepath.Join(t.TempDir(), "pipe"))
	go func() {
		if f, err := os.OpenFile(pipe, os.O_WRONLY, 0); err == nil {
			_, _ = f.WriteString("secret\n")
			_ = f.Close()
		}
	}()
	g := gatewayFlags{url: defaultGateway, tokenFile: pipe}
	e := env{lookup: func(string) (string, bool) { return "", false }}
	if token, err := g.bearer(t.Context(), e); err != nil || token != "secret" {
		t.Fatalf("%q, %v", token, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := g.client(ctx, e); err == nil || ctx.Err() == nil {
		t.Errorf("got %v; want the end of the context", err)
	}
	f, err := os.OpenFile(pipe, os.O_RDWR, 0) // frees the reader
	if err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
}
