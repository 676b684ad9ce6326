package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/pgwire"
	"github.com/fencegate/fencegate/internal/child"
)

// suite is an existing test suite for a PostgreSQL client or server.
type suite struct {
	name  string
	grant bool // the sessions carry the current grant, and the relay requires it
	terms func(files) (terms, error)
	run   func(context.Context, *world, files, place) (results, error)
	// expected are the tests whose outcome must differ through a relay. One whose outcome does not differ is a failure.
	expected []string
}

// files is the folder that conformance/pg/prepare filled.
type files string

// results are the outcomes by test: ok, skip, or the failure.
type results map[string]string

// PostgreSQL logs in by the client's certificate, which cannot pass a relay.
var certificates = []string{
	"pgconn.TestConnectTLSPasswordProtectedClientCertWithSSLPassword",
	"pgconn.TestConnectTLSPasswordProtectedClientCertWithGetSSLPasswordConfigOption",
}

// dropsOptions drops the connection string's options, and so the grant, which the relay requires.
const dropsOptions = "pgconn.TestConnectWithRuntimeParams"

var suites = []suite{
	{name: "libpq_pipeline", terms: pipelineTerms, run: pipeline},
	{name: "libpq_pipeline, with a grant", grant: true, terms: pipelineTerms, run: pipeline},
	{name: "pgx", terms: pgxTerms, run: pgxTests, expected: certificates},
	{name: "pgx, with a grant", grant: true, terms: pgxTerms, run: pgxTests, expected: append(slices.Clone(certificates), dropsOptions)},
	{name: "isolation tester", terms: regressTerms, run: isolation},
	{name: "pg_regress", terms: regressTerms, run: regress},
}

// compareSuites runs each suite directly and through the relay, each time with a new server, and prints a row for it.
func compareSuites(ctx context.Context, from files, only []string) (wrong int, err error) {
	fmt.Println("\n| suite | tests | ok | skipped | failed | relay as direct | seconds, direct | relay |")
	fmt.Println("|---|---:|---:|---:|---:|---|---:|---:|")
	for _, s := range suites {
		if len(only) > 0 && !slices.Contains(only, s.name) {
			continue
		}
		var took [2]time.Duration
		var got [2]results
		for i := range got {
			began := time.Now()
			if got[i], err = s.once(ctx, from, i == 1); err != nil {
				return wrong, fmt.Errorf("%s: %w", s.name, err)
			}
			took[i] = time.Since(began)
		}
		tests, surprises := differences(s.expected, got[0], got[1])
		wrong += len(surprises)
		same := "yes"
		if len(surprises) > 0 {
			same = "no"
		} else if len(s.expected) > 0 {
			same = fmt.Sprintf("yes, but for %d inherent", len(s.expected))
		}
		n := make(map[string]int)
		for _, outcome := range got[1] {
			n[outcome]++
		}
		printRow(s.name, fmt.Sprintf("%d | %d | %d | %d", tests, n["ok"], n["skip"], tests-n["ok"]-n["skip"]), same, fmt.Sprintf("%.0f | %.0f", took[0].Seconds(), took[1].Seconds()))
		for i, line := range surprises {
			if i == 30 {
				fmt.Fprintf(os.Stderr, "conformance-pg: %s: … and %d more\n", s.name, len(surprises)-i)
				break
			}
			fmt.Fprintln(os.Stderr, "conformance-pg:", s.name+":", line)
		}
	}
	return wrong, nil
}

func (s suite) once(ctx context.Context, from files, relayed bool) (got results, err error) {
	t, err := s.terms(from)
	if err != nil {
		return nil, err
	}
	t.BinDir = filepath.Join(string(from), "debian/usr/lib/postgresql/15/bin")
	if s.grant {
		t.relay.Rules = []pgwire.Rule{{User: "*", Database: "*", Policy: pgwire.PolicyGrantRequired}}
	}
	w, err := start(ctx, t)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	if s.grant {
		w.options = fmt.Sprintf("-c fence.resource=%s -c fence.token=%s", fence.EscapeResource(w.current.Resource), w.current.Presented())
	}
	at := w.direct
	if relayed {
		at = w.relay
	}
	got, err = s.run(ctx, w, from, at)
	if err == nil && len(got) == 0 {
		err = errors.New("there was no test")
	}
	return got, err
}

// differences returns the tests whose outcome differs through the relay, except the expected ones. An expected one that
// does not differ is a surprise, too.
func differences(expected []string, direct, relay results) (tests int, surprises []string) {
	all := maps.Clone(direct)
	maps.Copy(all, relay)
	for _, test := range slices.Sorted(maps.Keys(all)) {
		if differs := direct[test] != relay[test]; differs != slices.Contains(expected, test) {
			surprises = append(surprises, fmt.Sprintf("%s: directly %q, through the relay %q", test, direct[test], relay[test]))
		}
	}
	for _, test := range expected {
		if _, there := all[test]; !there {
			surprises = append(surprises, test+" is expected to differ, and is not there")
		}
	}
	return len(all), surprises
}

// program is a program to run. It does not outlive this process.
type program struct {
	path   string
	args   []string
	dir    string
	env    []string // besides PATH and the variables for libraries
	server bool     // run it as the server's user
}

// output runs it and returns its output, also if it exits with an error.
func (w *world) output(ctx context.Context, p program) (string, error) {
	cmd := exec.CommandContext(ctx, p.path, p.args...)
	cmd.Dir = p.dir
	cmd.Env = append([]string{"PATH=" + w.pg.BinDir() + ":" + os.Getenv("PATH"), "HOME=" + w.Dir, "LC_ALL=C"}, p.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if p.server {
		cmd.SysProcAttr.Credential = w.pg.Owner()
	}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		return "", err
	}
	group := -cmd.Process.Pid
	err := child.Adopt(group, syscall.SIGKILL)
	err = errors.Join(err, cmd.Wait())
	child.Disown(group)
	if ctx.Err() != nil {
		err = errors.Join(ctx.Err(), err)
	}
	return out.String(), err
}
