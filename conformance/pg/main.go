// Command pg lets drivers that know nothing of fencegate write through the relay of
// gateway/pgwire and directly, each with the current grant, with a stale one and with
// none, and compares what they get: both ways must be as the fence says.
//
// It prints a table, and exits with 1 where a driver gets something else. A driver
// that is not on this machine is named and left out, unless -all is given.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/gateway/pgwire"
	"github.com/fencegate/fencegate/internal/child"
	"github.com/fencegate/fencegate/internal/migrate"
	"github.com/fencegate/fencegate/internal/pgserver"
)

// drivers are the scripts, and what runs them.
var drivers = []struct{ name, script, there string }{
	{"psycopg 3", "/usr/bin/python3 with_psycopg3.py", "/usr/bin/python3 -c 'import psycopg'"},
	{"psycopg 2", "/usr/bin/python3 with_psycopg2.py", "/usr/bin/python3 -c 'import psycopg2'"},
	{"asyncpg", "/usr/bin/python3 with_asyncpg.py", "/usr/bin/python3 -c 'import asyncpg'"},
	{"JDBC", "java -cp /usr/share/java/postgresql.jar Jdbc.java", "command -v javac && test -e /usr/share/java/postgresql.jar"},
	{"node-postgres", "node node.js", `node -e 'require("pg")'`},
}

// wanted is what the fence answers to a write.
var wanted = map[string]string{"current": "ok", "stale": "ZF001", "none": "ZF002"}

const resource = "orders/1001"

func main() {
	all := flag.Bool("all", false, "fail where a driver is missing")
	folder := flag.String("drivers", "drivers", "folder of the drivers' scripts")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	wrong, err := run(ctx, *folder, *all)
	cancel()
	stop()
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "conformance-pg:", err)
		os.Exit(1)
	case wrong > 0:
		fmt.Fprintf(os.Stderr, "conformance-pg: %d outcomes are not as the fence says\n", wrong)
		os.Exit(1)
	}
}

func run(ctx context.Context, folder string, all bool) (wrong int, err error) {
	w, err := start(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	fmt.Println("| driver | case | current grant | stale grant | no grant | relay as direct |")
	fmt.Println("|---|---|---|---|---|---|")
	tried := 0
	for _, d := range drivers {
		if out, err := exec.CommandContext(ctx, "sh", "-c", d.there).CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "conformance-pg: %s is not on this machine: %s\n", d.name, firstLine(out))
			if all {
				wrong++
			}
			continue
		}
		tried++
		n, err := w.driver(ctx, folder, d.script)
		if err != nil {
			return wrong, fmt.Errorf("%s: %w", d.name, err)
		}
		wrong += n
	}
	if tried == 0 {
		return wrong, errors.New("there is no driver on this machine")
	}
	return wrong, nil
}

// world is a fenced PostgreSQL and the relay before it.
type world struct {
	dir            string
	server         *pgserver.Server
	direct, relay  string // addresses
	password       string
	current, stale fence.Grant
	stop           func() error
}

const schema = `CREATE ROLE driver LOGIN PASSWORD 'driver'; GRANT fence_writer TO driver;
	CREATE TABLE ledger (note text); GRANT ALL ON ledger TO driver;
	SELECT fence.protect('ledger', resource => '` + resource + `')`

func start(ctx context.Context) (w *world, err error) {
	w = &world{password: "driver", stop: func() error { return nil }}
	if w.dir, err = os.MkdirTemp("", "conformance-pg-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close())
		}
	}()
	if err = child.RemoveAtDeath(w.dir); err != nil {
		return w, err
	}
	if err = os.Chmod(w.dir, 0o711); err != nil { // as root the server is run by another user
		return w, err
	}
	if w.server, err = pgserver.Start(ctx, pgserver.Config{Dir: filepath.Join(w.dir, "pg"), Ephemeral: true, Fast: true}); err != nil {
		return w, err
	}
	admin := w.server.URL("postgres")
	if err = migrate.Up(ctx, admin); err != nil {
		return w, err
	}
	pool, err := pgxpool.New(ctx, admin)
	if err != nil {
		return w, err
	}
	defer pool.Close()
	if _, err = pool.Exec(ctx, schema); err != nil {
		return w, err
	}
	f := pgfence.New(pool)
	for token, grant := range []*fence.Grant{&w.stale, &w.current} {
		*grant = fence.Grant{Resource: resource, Token: fence.Token(token + 1), Seal: fence.NewSeal()}
		if err = f.Arm(ctx, fence.Arming{Resource: resource, Token: grant.Token, SealHash: grant.Seal.Hash(), Holder: "conformance"}); err != nil {
			return w, err
		}
	}
	u, err := url.Parse(admin)
	if err != nil {
		return w, err
	}
	w.direct = u.Host
	return w, w.serve(ctx)
}

func (w *world) serve(ctx context.Context) error {
	srv, err := pgwire.New(pgwire.Config{Addr: w.direct, Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))})
	if err != nil {
		return err
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	serving, cancel := context.WithCancel(context.WithoutCancel(ctx))
	served := make(chan error, 1)
	go func() { served <- srv.Serve(serving, ln) }()
	w.relay = ln.Addr().String()
	w.stop = func() error {
		cancel()
		return <-served
	}
	return nil
}

func (w *world) close() error {
	err := w.stop()
	if w.server != nil {
		err = errors.Join(err, w.server.Kill())
	}
	return errors.Join(err, os.RemoveAll(w.dir))
}

// outcomes are of one run of a script: by case, and the cases in order.
type outcomes struct {
	driver string
	cases  []string
	of     map[string]string
}

// driver runs a script both ways with each grant, and prints a row for each case.
func (w *world) driver(ctx context.Context, folder, script string) (wrong int, err error) {
	got := make(map[string]outcomes)
	for _, way := range []string{"direct", "relay"} {
		for presented, grant := range map[string]*fence.Grant{"current": &w.current, "stale": &w.stale, "none": nil} {
			if got[way+presented], err = w.script(ctx, folder, script, way, grant); err != nil {
				return 0, err
			}
		}
	}
	first := got["directcurrent"]
	for _, name := range first.cases {
		row := []string{first.driver, name}
		same := "yes"
		for _, presented := range []string{"current", "stale", "none"} {
			outcome, direct, want := got["relay"+presented].of[name], got["direct"+presented].of[name], wanted[presented]
			if name == "reading" {
				want = "ok"
			}
			if outcome != want {
				wrong++
				outcome += " (wanted " + want + ")"
			}
			if got["relay"+presented].of[name] != direct {
				wrong++
				same = "no: " + direct
			}
			row = append(row, outcome)
		}
		fmt.Println("| " + strings.Join(append(row, same), " | ") + " |")
	}
	if len(first.cases) == 0 {
		return 0, errors.New("the script had no case")
	}
	return wrong, nil
}

func (w *world) script(ctx context.Context, folder, script, way string, grant *fence.Grant) (o outcomes, err error) {
	host, port, err := net.SplitHostPort(map[string]string{"direct": w.direct, "relay": w.relay}[way])
	if err != nil {
		return o, err
	}
	words := strings.Fields(script)
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Dir = folder
	// By the environment: a command line is for everybody to read.
	cmd.Env = append(os.Environ(), "HOST="+host, "PORT="+port, "DATABASE=postgres", "LOGIN=driver", "PASSWORD="+w.password, "PYTHONDONTWRITEBYTECODE=1", "TOKEN=")
	if grant != nil {
		cmd.Env = append(cmd.Env, "RESOURCE="+fence.EscapeResource(grant.Resource), "TOKEN="+grant.Presented())
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return o, fmt.Errorf("%s: %w: %s", script, err, out)
	}
	o.of = make(map[string]string)
	for line := range strings.Lines(string(out)) {
		name, outcome, found := strings.Cut(strings.TrimSpace(line), "\t")
		switch {
		case !found:
			return o, fmt.Errorf("%s said %q", script, line)
		case name == "driver":
			o.driver = outcome
		case slices.Contains(o.cases, name):
			return o, fmt.Errorf("%s had %s twice", script, name)
		default:
			o.cases, o.of[name] = append(o.cases, name), outcome
		}
	}
	return o, nil
}

func firstLine(b []byte) string {
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return lines[len(lines)-1]
}
