package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/fencegate/fencegate/fence"
)

// drivers are the scripts, and the commands that run them.
var drivers = []struct{ name, script, there string }{
	{"psycopg 3", "/usr/bin/python3 with_psycopg3.py", "/usr/bin/python3 -c 'import psycopg'"},
	{"psycopg 2", "/usr/bin/python3 with_psycopg2.py", "/usr/bin/python3 -c 'import psycopg2'"},
	{"asyncpg", "/usr/bin/python3 with_asyncpg.py", "/usr/bin/python3 -c 'import asyncpg'"},
	{"JDBC", "java -cp /usr/share/java/postgresql.jar Jdbc.java", "command -v javac && test -e /usr/share/java/postgresql.jar"},
	{"node-postgres", "node node.js", `node -e 'require("pg")'`},
}

// wanted is the fence's answer to a write.
var wanted = map[string]string{"current": "ok", "stale": "ZF001", "none": "ZF002"}

const ledger = `CREATE ROLE driver LOGIN PASSWORD 'driver'; GRANT fence_writer, fence_locker TO driver;
	CREATE TABLE ledger (note text); GRANT ALL ON ledger TO driver;
	SELECT fence.protect('ledger', resource => '` + resource + `')`

// compareDrivers lets each driver write, and prints a row for each case.
func compareDrivers(ctx context.Context, folder string, all, poolers bool) (wrong int, err error) {
	w, err := start(ctx, terms{fenced: "postgres", schema: ledger})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	if poolers {
		return w.comparePoolers(ctx)
	}
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
	n, err := w.compareDefaults(ctx, folder, all)
	wrong += n
	if err != nil {
		return wrong, err
	}
	n, err = w.comparePoolers(ctx)
	if noPooler(err) && !all {
		fmt.Fprintln(os.Stderr, "conformance-pg: PgBouncer is not on this machine")
		err = nil
	}
	return wrong + n, err
}

// outcomes are those of one run of a script, by case, and the cases in order.
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
	at := map[string]place{"direct": w.direct, "relay": w.relay}[way]
	words := strings.Fields(script)
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Dir = folder
	// Values go into the environment, because everyone can read a command line.
	cmd.Env = append(os.Environ(), "HOST="+at.host, "PORT="+at.port, "DATABASE=postgres", "LOGIN=driver", "PASSWORD=driver", "PYTHONDONTWRITEBYTECODE=1", "TOKEN=")
	if grant != nil {
		cmd.Env = append(cmd.Env, "RESOURCE="+fence.EscapeResource(grant.Resource), "TOKEN="+grant.Presented())
	}
	// It also gets a driver's warnings: psycopg prints one when an error overtakes its pipeline.
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil {
		return o, fmt.Errorf("%s: %w: %s%s", script, err, out, complaints.Bytes())
	}
	return said(script, out)
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

func firstLine(b []byte) string {
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return lines[len(lines)-1]
}
