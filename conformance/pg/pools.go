package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/gateway/pgwire"
	"github.com/fencegate/fencegate/internal/devstack"
)

// pools reconnect by themselves; psql does so with an explicit \c.
var pools = []struct{ script, there string }{
	{"go run ./gopool pgxpool", "true"},
	{"go run ./gopool sql", "true"},
	{"/usr/bin/python3 with_sqlalchemy.py", "/usr/bin/python3 -c 'import sqlalchemy, psycopg2'"},
	{"/usr/bin/python3 with_psycopg_pool.py", "/usr/bin/python3 -c 'import psycopg_pool'"},
	{"/usr/bin/python3 with_asyncpg.py", "/usr/bin/python3 -c 'import asyncpg'"},
	{"/usr/bin/python3 with_django.py", "/usr/bin/python3 -c 'import django, psycopg2'"},
	{"sh psql.sh", "command -v psql"},
	{"ruby with_activerecord.rb", `ruby -e 'require "active_record"; require "pg"'`},
	{
		"java -cp /usr/share/java/HikariCP.jar:/usr/share/java/slf4j-api.jar:/usr/share/java/postgresql.jar Hikari.java",
		"command -v javac && test -e /usr/share/java/HikariCP.jar && test -e /usr/share/java/slf4j-api.jar && test -e /usr/share/java/postgresql.jar",
	},
}

const (
	before, theirs, stale = 100, 250, 101 // the pool's first read, another's write, and the pool's result from its read
	orders                = `CREATE TABLE orders (balance int); SELECT fence.protect('orders', resource => '` + resource + `')`
)

// reconnecting is a gateway with a pool role that may lease the resource.
type reconnecting struct {
	stack  *devstack.Stack
	client *client.Client
}

// comparePools lets each pool write a value that it computed before another client wrote, and prints a row for each:
// with a nonce the write must be refused; as a newcomer's it overwrites the other's.
func comparePools(ctx context.Context, folder string, all bool) (wrong int, err error) {
	stack, err := devstack.Start(ctx, devstack.Config{Ephemeral: true, PostgresLeases: true, PG: pgwire.Options{Permits: pgwire.Permits{LeaseRules: []pgwire.LeaseRule{{User: "*", Resource: resource}}}}})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, stack.Stop()) }()
	r := reconnecting{stack: stack}
	if r.client, err = client.New(client.Config{URL: stack.GatewayURL()}); err != nil {
		return 0, err
	}
	conn, err := pgx.Connect(ctx, stack.DatabaseURL())
	if err != nil {
		return 0, err
	}
	if _, err = conn.Exec(ctx, orders); err != nil {
		return 0, errors.Join(err, conn.Close(ctx))
	}
	if err := conn.Close(ctx); err != nil {
		return 0, err
	}
	fmt.Println("\n| pool | with `;once=NONCE` | the row | with `;fresh` | the row |")
	fmt.Println("|---|---|---|---|---|")
	for _, p := range pools {
		if out, err := exec.CommandContext(ctx, "sh", "-c", p.there).CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "conformance-pg: %s can't be run on this machine: %s\n", p.script, firstLine(out))
			if all {
				wrong++
			}
			continue
		}
		n, err := r.row(ctx, filepath.Join(folder, "pools"), p.script)
		wrong += n
		if err != nil {
			return wrong, err
		}
	}
	return wrong, nil
}

// row prints the results of a pool with either kind of lease.
func (r *reconnecting) row(ctx context.Context, folder, script string) (wrong int, err error) {
	var row []string
	for _, says := range []string{"once=" + rand.Text(), "fresh"} {
		got, err := r.story(ctx, folder, script, resource+";"+says)
		if err != nil {
			return wrong, fmt.Errorf("%s, %.5s: %w", script, says, err)
		}
		if row == nil {
			row = []string{got.driver}
		}
		right := got.wrote() && got.balance == stale
		if says != "fresh" {
			right = !got.wrote() && got.balance == theirs && slices.Contains(got.told(), "`ZF006`")
		}
		came, kept := strings.Join(got.told(), ", "), strconv.Itoa(theirs)+" stays"
		if got.balance != theirs {
			kept = fmt.Sprintf("**%d → %d**", theirs, got.balance)
		}
		if !right {
			wrong++
			kept += fmt.Sprintf(" (wrong; it said %q)", got.writes)
		}
		row = append(row, came, kept)
	}
	fmt.Println("| " + strings.Join(row, " | ") + " |")
	return wrong, nil
}

// retold is a script's output, and the row's final value.
type retold struct {
	driver  string
	writes  []string // the result of each try
	balance int
}

func (t retold) wrote() bool { return slices.Contains(t.writes, "ok") }

// told returns each outcome of the tries once. For a refused login, libpq shows the message and no SQLSTATE.
func (t retold) told() (outcomes []string) {
	for _, w := range t.writes {
		outcome := "an error of the lost connection"
		switch {
		case w == "ok":
			outcome = "**stored**"
		case strings.Contains(w, "ZF006"), strings.Contains(w, "nonce is spent"):
			outcome = "`ZF006`"
		case strings.Contains(w, "ZF001"):
			outcome = "`ZF001`"
		}
		if !slices.Contains(outcomes, outcome) {
			outcomes = append(outcomes, outcome)
		}
	}
	return outcomes
}

// story lets a pool read, ends its session, writes as another client, and lets the pool write the value from its read.
func (r *reconnecting) story(ctx context.Context, folder, script, lease string) (t retold, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := r.write(ctx, before); err != nil {
		return t, err
	}
	database, login, password := r.stack.Login()
	host, port, err := net.SplitHostPort(r.stack.Addrs().PG)
	if err != nil {
		return t, err
	}
	words := strings.Fields(script)
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Dir = folder
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // the script's children end with it
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Env = append(os.Environ(), "HOST="+host, "PORT="+port, "DATABASE="+database, "LOGIN="+login, "PASSWORD="+password, "PYTHONDONTWRITEBYTECODE=1", "LEASE="+lease+";ttl=30s;wait=10s")
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	in, err := cmd.StdinPipe()
	if err != nil {
		return t, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return t, err
	}
	if err := cmd.Start(); err != nil {
		return t, err
	}
	err = r.retell(ctx, &t, bufio.NewScanner(out), in)
	if err != nil {
		cancel()
	}
	if err = errors.Join(err, cmd.Wait()); err != nil {
		return t, fmt.Errorf("%w: %s", err, complaints.Bytes())
	}
	t.balance, err = r.read(ctx)
	return t, err
}

// retell reads the script's output, and writes as the other client when the script has read.
func (r *reconnecting) retell(ctx context.Context, t *retold, lines *bufio.Scanner, in io.WriteCloser) error {
	read := false
	for lines.Scan() {
		name, what, _ := strings.Cut(lines.Text(), "\t")
		switch {
		case name == "driver":
			t.driver = what
		case name == "read" && what == strconv.Itoa(before):
			read = true
			if _, err := r.client.Revoke(ctx, resource, "conformance"); err != nil {
				return err
			}
			if err := r.write(ctx, theirs); err != nil {
				return err
			}
			if _, err := io.WriteString(in, "go\n"); err != nil {
				return err
			}
		case name == "write" && read:
			t.writes = append(t.writes, what)
		default:
			return fmt.Errorf("it said %q", lines.Text())
		}
	}
	if len(t.writes) == 0 {
		return errors.Join(errors.New("it tried no write"), lines.Err())
	}
	return lines.Err()
}

// write writes as another client, with its own lease, which then ends.
func (r *reconnecting) write(ctx context.Context, balance int) (err error) {
	lease, err := r.client.Acquire(ctx, client.AcquireRequest{Resource: resource, TTL: time.Minute, Wait: 30 * time.Second, Holder: "another"})
	if err != nil {
		return err
	}
	grant, err := lease.Grant()
	if err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, r.stack.DatabaseURL())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(ctx), r.client.Release(ctx, lease.Handle)) }()
	return pgfence.InTx(ctx, conn, grant, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "DELETE FROM orders"); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "INSERT INTO orders VALUES ($1)", balance)
		return err
	})
}

func (r *reconnecting) read(ctx context.Context) (balance int, err error) {
	conn, err := pgx.Connect(ctx, r.stack.DatabaseURL())
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	err = conn.QueryRow(ctx, "SELECT balance FROM orders").Scan(&balance)
	return balance, err
}
