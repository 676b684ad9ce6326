package main

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/internal/testenv"
)

var servedPostgres = regexp.MustCompile(`the gateway serves".* pg=127\.0\.0\.1:(\d+)`)

// startServe starts `fencegate serve` in front of a database. It returns the log, and the URL of its PostgreSQL port
// with the database's writer.
func startServe(t *testing.T, pg testenv.PG, args ...string) (cmd *exec.Cmd, lines *bufio.Scanner, address string) {
	t.Helper()
	nodes, dir := testenv.OwnRedis(t, 1), openTempDir(t)
	key := filepath.Join(dir, "key")
	if err := os.WriteFile(key, []byte("k1:"+strings.Repeat("5a", 32)), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd = command(t, dir, append([]string{
		"serve", "--postgres-url", pg.GatewayURL, "--redis", nodes[0].Addr, "--init", "--node-timeout", "20s", "--master-key-file", key,
		"--api-listen", "127.0.0.1:0", "--pg-listen", "127.0.0.1:0",
	}, args...)...)
	cmd.Stderr = nil
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	lines = bufio.NewScanner(stderr)
	port := servedPostgres.FindStringSubmatch(awaitLine(t, lines, "the gateway serves"))
	cfg, err := pgx.ParseConfig(pg.WriterURL)
	if err != nil || port == nil {
		t.Fatalf("where it serves: %q, %v", port, err)
	}
	return cmd, lines, "postgres://" + cfg.User + ":" + cfg.Password + "@127.0.0.1:" + port[1] + "/" + cfg.Database + "?sslmode=disable"
}

// awaitLine returns the log's next line with these words. After a minute it fails the test, which kills the gateway.
func awaitLine(t *testing.T, lines *bufio.Scanner, words string) (line string) {
	t.Helper()
	found := make(chan bool, 1)
	go func() {
		for lines.Scan() {
			if line = lines.Text(); strings.Contains(line, words) {
				found <- true
				return
			}
		}
		found <- false
	}()
	select {
	case is := <-found:
		if !is {
			t.Fatalf("the log ends without %q", words)
		}
	case <-time.After(time.Minute):
		t.Fatalf("within a minute the log has no %q", words)
	}
	return line
}

func TestASecondSignalEndsAGatewayThatDrains(t *testing.T) {
	t.Parallel()
	cmd, lines, address := startServe(t, testenv.Postgres(t), "--drain-timeout", "1h")
	conn, err := pgx.Connect(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	if _, err := conn.Exec(t.Context(), "BEGIN; SELECT 1"); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for { // until the gateway drains
		more, err := pgx.Connect(t.Context(), address)
		if err != nil {
			break
		}
		_ = more.Close(t.Context())
		<-tick.C
	}
	if _, err := conn.Exec(t.Context(), "SELECT 1"); err != nil {
		t.Fatalf("it does not drain: %v", err)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for lines.Scan() { // to the end
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != exitInterrupted {
		t.Errorf("it ended with %d; want %d", code, exitInterrupted)
	}
	if _, err := conn.Exec(t.Context(), "SELECT 1"); err == nil || !strings.Contains(err.Error(), "57P01") {
		t.Errorf("the session got %v; want 57P01", err)
	}
}
