package main

import (
	"bufio"
	"context"
	"io"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/testenv"
)

// devProcess is a running `fencegate dev`.
type devProcess struct {
	cmd                *exec.Cmd
	api, postgres, dir string
}

var addresses = regexp.MustCompile(`(?s)HTTP API +(\S+)\n +PostgreSQL +(\S+)\n.*state +(\S+)`)

func startDev(t *testing.T, tmp string, args ...string) devProcess {
	t.Helper()
	s := devProcess{cmd: command(t, tmp, append([]string{"dev", "--api-listen", "127.0.0.1:0", "--pg-listen", "127.0.0.1:0", "--s3-listen", "127.0.0.1:0"}, args...)...)}
	stdout, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.cmd.Process.Kill(); _ = s.cmd.Wait() })
	var printed strings.Builder
	lines := bufio.NewScanner(io.TeeReader(stdout, &printed))
	for lines.Scan() && !strings.HasPrefix(lines.Text(), "Try") {
	}
	found := addresses.FindStringSubmatch(printed.String())
	if found == nil {
		t.Fatalf("it did not say where it runs:\n%s", printed.String())
	}
	s.api, s.postgres, s.dir = found[1], found[2], found[3]
	return s
}

func (s devProcess) client(t *testing.T) *client.Client {
	t.Helper()
	c, err := client.New(client.Config{URL: s.api})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (s devProcess) acquire(t *testing.T) client.Lease {
	t.Helper()
	lease, err := s.client(t).Acquire(t.Context(), client.AcquireRequest{Resource: "orders/7", TTL: time.Minute, Wait: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

// write changes the order through the PostgreSQL port, under a lease's grant.
func (s devProcess) write(t *testing.T, lease client.Lease, status string) error {
	t.Helper()
	cfg, err := pgx.ParseConfig(s.postgres)
	if err != nil {
		t.Fatal(err)
	}
	cfg.RuntimeParams["options"] = "-c fence.resource=" + fence.EscapeResource(lease.Resource) + " -c fence.token=" + lease.Presented
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	_, err = conn.Exec(t.Context(), "UPDATE orders SET status = $1", status)
	return err
}

func (s devProcess) createOrders(t *testing.T) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.postgres)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	_, err = conn.Exec(t.Context(), `CREATE TABLE orders (status text); INSERT INTO orders VALUES ('new'); SELECT fence.protect('orders', under => 'orders/')`)
	if err != nil {
		t.Fatal(err)
	}
}

func TestDevKeepsItsFencesOverAKillAndARestart(t *testing.T) {
	t.Parallel()
	tmp, data := openTempDir(t), filepath.Join(openTempDir(t), "state")
	first := startDev(t, tmp, "--data", data)
	first.createOrders(t)
	old := first.acquire(t)
	if err := first.write(t, old, "before"); err != nil {
		t.Fatal(err)
	}
	if err := first.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = first.cmd.Wait()

	second := startDev(t, tmp, "--data", data)
	if err := second.write(t, old, "still the newest holder"); err != nil {
		t.Errorf("the fence's current grant was refused after a restart: %v", err)
	}
	current := second.acquire(t)
	if current.Token <= old.Token {
		t.Errorf("token %d after the restart, %d before: it must rise", current.Token, old.Token)
	}
	if err := second.write(t, old, "stale"); err == nil || !strings.Contains(err.Error(), "ZF001") {
		t.Errorf("a grant from before the restart wrote although a newer one is armed: %v", err)
	}
	if err := second.write(t, current, "after"); err != nil {
		t.Error(err)
	}
}

func TestDevStopsOnCtrlCAndEphemeralLeavesNothing(t *testing.T) {
	t.Parallel()
	for name, signal := range map[string]syscall.Signal{"Ctrl-C": syscall.SIGINT, "TERM": syscall.SIGTERM, "kill -9": syscall.SIGKILL} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tmp := openTempDir(t)
			s := startDev(t, tmp, "--ephemeral")
			s.createOrders(t)
			if err := s.cmd.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}
			if err := s.cmd.Wait(); err != nil && signal != syscall.SIGKILL {
				t.Errorf("it ended with %v, want exit code 0", err)
			}
			wantEmpty(t, tmp)
		})
	}
}

func TestTwoDevsDoNotShareAFolder(t *testing.T) {
	t.Parallel()
	tmp, data := openTempDir(t), filepath.Join(openTempDir(t), "state")
	startDev(t, tmp, "--data", data)
	second := command(t, tmp, "dev", "--data", data, "--api-listen", "127.0.0.1:0", "--pg-listen", "127.0.0.1:0", "--s3-listen", "127.0.0.1:0")
	var said strings.Builder
	second.Stderr = &said
	if err := second.Run(); err == nil || !strings.Contains(said.String(), "in use by another fencegate") {
		t.Errorf("got %v, %q; want a refusal that says why", err, said.String())
	}
}

func TestDevUsesAGivenPostgreSQLAndEphemeralLeavesNothingThere(t *testing.T) {
	t.Parallel()
	pg := testenv.PostgresEmpty(t)
	// A stack that keeps its state has this database.
	drop := func(ctx context.Context) error {
		_, err := pg.Pool(t).Exec(ctx, `DROP DATABASE IF EXISTS fencegate_dev`)
		return err
	}
	if _, err := pg.Pool(t).Exec(t.Context(), `CREATE DATABASE fencegate_dev`); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = drop(context.Background()) })
	s := startDev(t, openTempDir(t), "--ephemeral", "--postgres-url", pg.URL)
	s.createOrders(t)
	lease := s.acquire(t)
	if err := s.write(t, lease, "paid"); err != nil {
		t.Error(err)
	}
	if err := s.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Wait(); err != nil {
		t.Error(err)
	}
	var left int
	err := pg.Pool(t).QueryRow(t.Context(), `SELECT (SELECT count(*) FROM pg_database WHERE datname LIKE 'fencegate_dev%') +
		(SELECT count(*) FROM pg_roles WHERE rolname LIKE 'fencegate_dev%')`).Scan(&left)
	if err != nil || left != 1 {
		t.Errorf("%d databases and logins are there, want the one of the other stack: %v", left, err)
	}
}

func TestDevPassesItsCommandsExitCodeOn(t *testing.T) {
	t.Parallel()
	tmp := openTempDir(t)
	cmd := command(t, tmp, "dev", "--ephemeral", "--api-listen", "127.0.0.1:0", "--pg-listen", "127.0.0.1:0", "--s3-listen", "127.0.0.1:0",
		"--", "sh", "-c", `test -n "$FENCEGATE_GATEWAY" && test -n "$DATABASE_URL" && exit 7`)
	_ = cmd.Run()
	if got := cmd.ProcessState.ExitCode(); got != 7 {
		t.Errorf("exit code %d, want 7", got)
	}
	wantEmpty(t, tmp)
}
