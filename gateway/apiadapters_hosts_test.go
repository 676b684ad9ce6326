//go:build unix

package gateway

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/internal/pgserver"
	"github.com/fencegate/fencegate/internal/testenv"
)

// pairOf starts a primary, and a standby that streams from it.
func pairOf(t *testing.T) (primary, standby *pgserver.Server) {
	t.Helper()
	primary = ownServer(t, "")
	logins(t, primary, "ada")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	dir := testenv.ServerDir(t)
	if err := primary.CopyTo(ctx, dir, true); err != nil {
		t.Fatal(err)
	}
	return primary, ownServer(t, dir)
}

// hostsAddress returns a database address with several hosts.
func hostsAddress(t *testing.T, options string, all ...*pgserver.Server) string {
	t.Helper()
	var hosts []string
	password := ""
	for _, s := range all {
		hosts = append(hosts, s.Addr())
		config, err := pgx.ParseConfig(s.URL("postgres"))
		if err != nil {
			t.Fatal(err)
		}
		password = config.Password // the standby is a copy, so both have the same
	}
	return fmt.Sprintf("postgres://postgres:%s@%s/postgres?sslmode=disable&%s", password, strings.Join(hosts, ","), options)
}

func portOf(addr string) string {
	_, number, _ := net.SplitHostPort(addr)
	return number
}

// served returns the port of the server that a session through p reaches.
func served(t *testing.T, p *relayPort) (number string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, p.url("ada", "sslmode=disable"))
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close(ctx) }()
	return number, conn.QueryRow(ctx, "SHOW port").Scan(&number)
}

func TestTheRelayFollowsTheRoleOfRealServers(t *testing.T) {
	t.Parallel()
	primary, standby := pairOf(t)
	first, second := portOf(primary.Addr()), portOf(standby.Addr())
	for attrs, want := range map[string]string{
		"any": second, "read-write": first, "primary": first, "read-only": second, "standby": second, "prefer-standby": second,
	} {
		p := openPort(t, hostsAddress(t, "target_session_attrs="+attrs, standby, primary), nil)
		testenv.Eventually(t, attrs+" goes to port "+want, func() bool { // a preferred host may answer late once
			got, err := served(t, p)
			return err == nil && got == want
		})
		p.stop()
	}
	writes := openPort(t, hostsAddress(t, "target_session_attrs=read-write", primary, standby), nil)
	standbyFirst := openPort(t, hostsAddress(t, "target_session_attrs=prefer-standby", primary, standby), nil)
	open, err := pgx.Connect(t.Context(), writes.url("ada", "sslmode=disable"))
	if err != nil {
		t.Fatal(err)
	}
	if err := primary.Kill(); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "a session ends with its server", func() bool { // a backend notices the postmaster's death a moment later
		_, err := open.Exec(t.Context(), "SELECT 1")
		return err != nil
	})
	testenv.Eventually(t, "nobody takes writes, and a client hears so", func() bool {
		_, err := served(t, writes)
		return err != nil && strings.Contains(err.Error(), "cannot reach PostgreSQL")
	})
	query(t, standby.URL("postgres"), "SELECT pg_promote()::text")
	testenv.Eventually(t, "the promoted one takes the writes", func() bool {
		got, err := served(t, writes)
		return err == nil && got == second
	})
	testenv.Eventually(t, "for want of a standby, the only server", func() bool {
		got, err := served(t, standbyFirst)
		return err == nil && got == second
	})
}

// TestReplicationPassesTheRelay streams to a standby through the relay, and decodes changes through it.
func TestReplicationPassesTheRelay(t *testing.T) {
	t.Parallel()
	primary, dir := ownServer(t, ""), testenv.ServerDir(t)
	p := openPort(t, primary.URL("postgres"), nil)
	query(t, primary.URL("postgres"), "CREATE TABLE t (n int); INSERT INTO t VALUES (1)")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := primary.Tool(ctx, "pg_basebackup", "--pgdata", "backup", "--host", "127.0.0.1", "--port", portOf(p.addr), "--username", pgserver.Superuser,
		"--no-password", "--wal-method", "stream", "--checkpoint", "fast", "--no-sync"); err != nil {
		t.Errorf("a backup through the relay: %v", err)
	}
	if err := primary.CopyTo(ctx, dir, true); err != nil {
		t.Fatal(err)
	}
	redirect(t, filepath.Join(dir, "data", "postgresql.auto.conf"), portOf(primary.Addr()), portOf(p.addr))
	standby := ownServer(t, dir)
	query(t, primary.URL("postgres"), "INSERT INTO t VALUES (2)")
	testenv.Eventually(t, "the standby has both rows", func() bool { return len(query(t, standby.URL("postgres"), "SELECT n::text FROM t")) == 2 })
	// Those of the backup are just ending.
	testenv.Eventually(t, "there is one walsender, and one session of the relay", func() bool {
		return len(query(t, primary.URL("postgres"), "SELECT application_name FROM pg_stat_replication")) == 1 && p.Stats().Active == 1
	})
	recv := func(args ...string) {
		t.Helper()
		args = append([]string{"--host", "127.0.0.1", "--port", portOf(p.addr), "--username", pgserver.Superuser, "--dbname", "postgres", "--slot", "s", "--no-loop"}, args...)
		if err := primary.Tool(ctx, "pg_recvlogical", args...); err != nil {
			t.Fatal(err)
		}
	}
	recv("--create-slot", "--plugin", "test_decoding")
	query(t, primary.URL("postgres"), "INSERT INTO t VALUES (3)")
	lsn := query(t, primary.URL("postgres"), "SELECT pg_current_wal_lsn()::text")[0]
	recv("--start", "--endpos", lsn, "--file", "/dev/null")
	if left := query(t, primary.URL("postgres"), "SELECT data FROM pg_logical_slot_peek_changes('s', NULL, NULL) WHERE data LIKE '%INSERT%'"); len(left) != 0 {
		t.Errorf("the decoded changes were not received: %q", left)
	}
	recv("--drop-slot")
}

// redirect makes a standby stream from another port.
func redirect(t *testing.T, file, from, to string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.Replace(string(text), "port="+from, "port="+to, 1)
	if changed == string(text) {
		t.Fatalf("%s has no port=%s", file, from)
	}
	if err := os.WriteFile(file, []byte(changed), 0o600); err != nil { // keeps its owner
		t.Fatal(err)
	}
}
