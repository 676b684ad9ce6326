package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/runner"
	"github.com/fencegate/fencegate/internal/stack"
	"github.com/fencegate/fencegate/wire"
)

const python = "/usr/bin/python3 "

// drivers are scripts, each with a command that shows whether it can be run. A script with cases writes in each way of
// its driver, directly and through the relay. Every script writes with only what `fencegate run` provides, too:
// variables, and a URL.
var drivers = []driver{
	{script: "sh psql.sh", there: "command -v psql"},
	{script: python + "with_psycopg3.py", there: python + "-c 'import psycopg'", cases: true},
	{script: python + "with_psycopg2.py", there: python + "-c 'import psycopg2'", cases: true},
	{script: python + "with_asyncpg.py", there: python + "-c 'import asyncpg'", cases: true, noVariables: true},
	{script: python + "with_odbc.py", there: python + "-c 'import pyodbc' && odbcinst -q -d -n 'PostgreSQL Unicode'", only: "variables"},
	{script: "perl with_dbd.pl", there: "perl -MDBD::Pg -e 1", only: "variables"},
	{script: "ruby with_pg.rb", there: "ruby -rpg -e 1"},
	{script: "php with_pg.php", there: "php -r 'exit(function_exists(\"pg_connect\") ? 0 : 1);'"},
	{script: "node node.js", there: `node -e 'require("pg")'`, cases: true},
	{script: "java -cp /usr/share/java/postgresql.jar Jdbc.java", there: "command -v javac && test -e /usr/share/java/postgresql.jar", cases: true, only: "url"},
	{script: "go run ./godriver pgx"},
	{script: "go run ./godriver postgres"},
	{script: "go run -C oldpgx ../godriver/main.go pgx", noVariables: true}, // pgx 5.7.5 and later read PGOPTIONS
	{script: "go run -C ../../../examples/orm ./withrun sqlx"},
	{script: "go run -C ../../../examples/orm ./withrun gorm"},
}

type driver struct {
	script, there string
	cases         bool
	noVariables   bool   // it ignores the variables, so that the write is refused
	only          string // the only one of ways that it has; "": all
}

// ways are those by which a driver gets what `fencegate run` provides.
var ways = []string{"variables", "url"}

// wanted is the fence's answer to a write.
var wanted = map[string]string{"current": "ok", "stale": "ZF001", "none": "ZF002"}

var presented = []string{"current", "stale", "none"}

func ledger() stack.Database {
	return stack.Database{
		Name: "postgres", Logins: []stack.Login{{Name: "driver", Password: "driver", Roles: []string{"fence_writer", "fence_locker"}}},
		Then: []string{"CREATE TABLE ledger (note text)", "GRANT ALL ON ledger TO driver", "SELECT fence.protect('ledger', resource => '" + resource + "')"},
	}
}

// compareDrivers lets each driver write, and prints a row for each case.
func compareDrivers(ctx context.Context, folder string, all, poolers bool) (wrong int, err error) {
	w, err := start(ctx, terms{PostgresConfig: stack.PostgresConfig{Database: ledger()}})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	if poolers {
		return w.comparePoolers(ctx)
	}
	there := slices.Clone(drivers[:0])
	for _, d := range drivers {
		if out, err := exec.CommandContext(ctx, "sh", "-c", d.there).CombinedOutput(); err == nil {
			there = append(there, d)
		} else {
			fmt.Fprintf(os.Stderr, "conformance-pg: %s can't be run on this machine: %s\n", d.script, firstLine(out))
			if all {
				wrong++
			}
		}
	}
	fmt.Println("| driver | case | current grant | stale grant | no grant | relay as direct |\n|---|---|---|---|---|---|")
	tried := 0
	for _, d := range there {
		if d.cases {
			n, err := w.compareCases(ctx, folder, d.script)
			if err != nil {
				return wrong, err
			}
			wrong += n
			tried++
		}
	}
	if tried == 0 {
		return wrong, errors.New("there is no driver on this machine")
	}
	fmt.Println("\n| driver, with its defaults | by PGOPTIONS | by its URL (`--pg-url-env`, `JDBC_URL`) |\n|---|---|---|")
	for _, d := range there {
		n, err := w.compareDefaults(ctx, folder, d)
		if err != nil {
			return wrong, err
		}
		wrong += n
	}
	n, err := w.comparePoolers(ctx)
	if errors.Is(err, stack.ErrNoPgBouncer) && !all {
		fmt.Fprintln(os.Stderr, "conformance-pg:", err)
		err = nil
	}
	return wrong + n, err
}

// compareCases runs a script both ways with each grant, and prints a row for each case.
func (w *world) compareCases(ctx context.Context, folder, script string) (wrong int, err error) {
	way := func(at place) func(*fence.Grant) ([]string, error) {
		return func(grant *fence.Grant) ([]string, error) {
			environ := append(os.Environ(), "HOST="+at.host, "PORT="+at.port, "DATABASE=postgres", "LOGIN=driver", "PASSWORD=driver", "TOKEN=")
			if grant != nil {
				environ = append(environ, "RESOURCE="+fence.EscapeResource(grant.Resource), "TOKEN="+grant.Presented())
			}
			return environ, nil
		}
	}
	direct, err := w.each(ctx, folder, script, way(w.direct))
	if err != nil {
		return 0, err
	}
	relay, err := w.each(ctx, folder, script, way(w.relay))
	if err != nil {
		return 0, err
	}
	for _, name := range direct["current"].cases {
		row, same := []string{direct["current"].driver, name}, "yes"
		for _, grant := range presented {
			outcome, want := relay[grant].of[name], wanted[grant]
			if name == "reading" {
				want = "ok"
			}
			if directly := direct[grant].of[name]; outcome != directly {
				wrong++
				same = "no: " + directly
			}
			if outcome != want {
				wrong++
				outcome += " (wanted " + want + ")"
			}
			row = append(row, outcome)
		}
		printRow(append(row, same)...)
	}
	if len(direct["current"].cases) == 0 {
		return 0, fmt.Errorf("%s had no case", script)
	}
	return wrong, nil
}

// compareDefaults runs a script as the command of a run with each grant, and without a run but at the port, and prints
// a row.
func (w *world) compareDefaults(ctx context.Context, folder string, d driver) (wrong int, err error) {
	port, err := strconv.Atoi(w.relay.port)
	if err != nil {
		return 0, err
	}
	got, err := w.each(ctx, folder, d.script, func(grant *fence.Grant) ([]string, error) {
		login := []string{
			"DEFAULTS=1", "PGUSER=driver", "PGPASSWORD=driver", "PGSSLMODE=disable",
			"DATABASE_URL=postgres://driver:driver@db.invalid:1/postgres?sslmode=disable",
			"JDBC_URL=jdbc:postgresql://db.invalid:1/postgres?user=driver&password=driver",
		}
		lease := client.Lease{Resource: resource}
		if grant != nil {
			lease.Presented = grant.Presented()
		}
		at := wire.PostgresEndpoint{Host: w.relay.host, Port: port, Database: "postgres"}
		return runner.PostgresEnviron(append(os.Environ(), login...), []string{"DATABASE_URL"}, lease, at)
	})
	if err != nil {
		return 0, err
	}
	row := []string{got["current"].driver}
	expected := slices.DeleteFunc(slices.Clone(ways), func(way string) bool { return d.only != "" && way != d.only })
	for _, grant := range presented {
		if had := got[grant].cases; !slices.Equal(had, expected) {
			return 0, fmt.Errorf("%s wrote by %q with the %s grant, wanted %q", d.script, had, grant, expected)
		}
	}
	for _, way := range ways {
		cell, ignored := "yes", d.noVariables && way == "variables"
		switch {
		case ignored:
			cell = "no, it ignores them: `ZF002`"
		case !slices.Contains(expected, way):
			row = append(row, "–")
			continue
		}
		for _, grant := range presented {
			want := wanted[grant]
			if ignored {
				want = wanted["none"]
			}
			if outcome := got[grant].of[way]; outcome != want {
				wrong++
				cell = fmt.Sprintf("with the %s grant %s (wanted %s)", grant, outcome, want)
			}
		}
		row = append(row, cell)
	}
	printRow(row...)
	return wrong, nil
}

// outcomes are those of one run of a script, by case, and the cases in order.
type outcomes struct {
	driver string
	cases  []string
	of     map[string]string
}

// each runs a script with each grant. environ is its environment with one; nil: with none. Values go into the
// environment, because everyone can read a command line.
func (w *world) each(ctx context.Context, folder, script string, environ func(*fence.Grant) ([]string, error)) (map[string]outcomes, error) {
	got := make(map[string]outcomes)
	for name, grant := range map[string]*fence.Grant{"current": &w.current, "stale": &w.stale, "none": nil} {
		words := strings.Fields(script)
		cmd := exec.CommandContext(ctx, words[0], words[1:]...)
		env, err := environ(grant)
		if err != nil {
			return nil, err
		}
		env = append(env, "PYTHONDONTWRITEBYTECODE=1")
		cmd.Dir, cmd.Env = folder, env
		var complaints bytes.Buffer // with a driver's warnings: psycopg prints one when an error overtakes its pipeline
		cmd.Stderr = &complaints
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("%s: %w: %s%s", script, err, out, complaints.Bytes())
		}
		if got[name], err = said(script, out); err != nil {
			return nil, err
		}
	}
	return got, nil
}

// said parses a script's output.
func said(script string, out []byte) (o outcomes, err error) {
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

func printRow(cells ...string) { fmt.Println("| " + strings.Join(cells, " | ") + " |") }

func firstLine(b []byte) string {
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return lines[len(lines)-1]
}
