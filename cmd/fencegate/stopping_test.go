package main

import (
	"bufio"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/internal/testenv"
)

var servedPostgres = regexp.MustCompile(`the gateway serves".* postgresql=127\.0\.0\.1:(\d+)`)

func TestASecondSignalEndsAGatewayThatDrains(t *testing.T) {
	t.Parallel()
	pg, nodes := testenv.Postgres(t), testenv.OwnRedis(t, 1)
	dir := openTempDir(t)
	key := filepath.Join(dir, "key")
	if err := os.WriteFile(key, []byte("k1:"+strings.Repeat("5a", 32)), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := command(t, dir, "serve", "--postgres-url", pg.GatewayURL, "--redis", nodes[0].Addr, "--init", "--node-timeout", "1s", "--master-key-file", key,
		"--api-listen", "127.0.0.1:0", "--pg-listen", "127.0.0.1:0", "--drain-timeout", "1h")
	cmd.Stderr = nil
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	var port []string
	lines := bufio.NewScanner(stderr)
	for port == nil && lines.Scan() {
		port = servedPostgres.FindStringSubmatch(lines.Text())
	}
	if port == nil {
		t.Fatal("it did not start")
	}
	cfg, err := pgx.ParseConfig(pg.WriterURL)
	if err != nil {
		t.Fatal(err)
	}
	address := "postgres://" + cfg.User + ":" + cfg.Password + "@127.0.0.1:" + port[1] + "/" + cfg.Database + "?sslmode=disable"
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
	for { // until it drains
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
	for lines.Scan() { // to its end
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != exitInterrupted {
		t.Errorf("it ended with %d; want %d", code, exitInterrupted)
	}
	if _, err := conn.Exec(t.Context(), "SELECT 1"); err == nil || !strings.Contains(err.Error(), "57P01") {
		t.Errorf("the session was told: %v; want 57P01", err)
	}
}
