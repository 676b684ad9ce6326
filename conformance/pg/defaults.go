package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/runner"
	"github.com/fencegate/fencegate/wire"
)

// byDefault are drivers that connect with only what `fencegate run` provides. ignores lists the ways by which they do
// not get the grant, so that a write is refused.
var byDefault = []struct {
	script, there string
	ignores       []string
}{
	{"sh psql.sh", "command -v psql", nil},
	{"/usr/bin/python3 with_psycopg3.py", "/usr/bin/python3 -c 'import psycopg'", nil},
	{"/usr/bin/python3 with_psycopg2.py", "/usr/bin/python3 -c 'import psycopg2'", nil},
	{"/usr/bin/python3 with_asyncpg.py", "/usr/bin/python3 -c 'import asyncpg'", []string{"variables"}},
	{"/usr/bin/python3 with_odbc.py", "/usr/bin/python3 -c 'import pyodbc' && odbcinst -q -d -n 'PostgreSQL Unicode'", nil},
	{"perl with_dbd.pl", "perl -MDBD::Pg -e 1", nil},
	{"ruby with_pg.rb", "ruby -rpg -e 1", nil},
	{"php with_pg.php", "php -r 'exit(function_exists(\"pg_connect\") ? 0 : 1);'", nil},
	{"node node.js", `node -e 'require("pg")'`, nil},
	{"java -cp /usr/share/java/postgresql.jar Jdbc.java", "command -v javac && test -e /usr/share/java/postgresql.jar", nil},
	{"go run ./godriver pgx", "true", nil},
	{"go run ./godriver postgres", "true", nil},
	{"go run -C oldpgx .", "true", []string{"variables"}}, // pgx 5.7.5 and later read PGOPTIONS
	{"go run -C ../../../../examples/orm ./withrun sqlx", "true", nil},
	{"go run -C ../../../../examples/orm ./withrun gorm", "true", nil},
}

// compareDefaults lets each driver write with the environment of
// `fencegate run`, under each grant, and prints a row for each.
func (w *world) compareDefaults(ctx context.Context, folder string, all bool) (wrong int, err error) {
	fmt.Println("\n| driver, with its defaults | by PGOPTIONS | by its URL (`--pg-url-env`, `JDBC_URL`) |")
	fmt.Println("|---|---|---|")
	for _, d := range byDefault {
		if out, err := exec.CommandContext(ctx, "sh", "-c", d.there).CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "conformance-pg: %s can't be run on this machine: %s\n", d.script, firstLine(out))
			if all {
				wrong++
			}
			continue
		}
		got := map[string]outcomes{}
		for presented, grant := range map[string]*fence.Grant{"current": &w.current, "stale": &w.stale, "none": nil} {
			if got[presented], err = w.byDefault(ctx, folder, d.script, grant); err != nil {
				return wrong, err
			}
		}
		row := []string{got["current"].driver}
		for _, way := range []string{"variables", "url"} {
			cell, ok := judged(got, way, slices.Contains(d.ignores, way))
			if !ok {
				wrong++
			}
			row = append(row, cell)
		}
		fmt.Println("| " + strings.Join(row, " | ") + " |")
	}
	return wrong, nil
}

// judged reports for one way whether the driver gets the grant, and whether that is as expected.
func judged(got map[string]outcomes, way string, ignored bool) (cell string, ok bool) {
	if _, has := got["current"].of[way]; !has {
		return "–", true
	}
	cell = "yes"
	for presented, want := range wanted {
		if ignored {
			cell, want = "no, it ignores them: `ZF002`", wanted["none"]
		}
		if outcome := got[presented].of[way]; outcome != want {
			return fmt.Sprintf("with the %s grant %s (wanted %s)", presented, outcome, want), false
		}
	}
	return cell, true
}

// byDefault runs a script as the command of a run with this grant; nil: without a run, but at the port.
func (w *world) byDefault(ctx context.Context, folder, script string, grant *fence.Grant) (outcomes, error) {
	port, err := strconv.Atoi(w.relay.port)
	if err != nil {
		return outcomes{}, err
	}
	login := []string{
		"PGUSER=driver", "PGPASSWORD=driver", "PGSSLMODE=disable", "PYTHONDONTWRITEBYTECODE=1",
		"DATABASE_URL=postgres://driver:driver@db.invalid:1/postgres?sslmode=disable",
		"JDBC_URL=jdbc:postgresql://db.invalid:1/postgres?user=driver&password=driver",
	}
	at := wire.PostgresEndpoint{Host: w.relay.host, Port: port, Database: "postgres"}
	lease := client.Lease{Resource: resource}
	if grant != nil {
		lease.Presented = grant.Presented()
	}
	environ, err := runner.PostgresEnviron(append(os.Environ(), login...), []string{"DATABASE_URL"}, lease, at)
	if err != nil {
		return outcomes{}, err
	}
	words := strings.Fields(script)
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Dir, cmd.Env = filepath.Join(folder, "defaults"), environ
	out, err := cmd.Output()
	if err != nil {
		if ended, ok := errors.AsType[*exec.ExitError](err); ok {
			out = append(out, ended.Stderr...)
		}
		return outcomes{}, fmt.Errorf("%s: %w: %s", script, err, out)
	}
	return said(script, out)
}
