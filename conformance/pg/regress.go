package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/fencegate/fencegate/internal/stack"
)

func pipelineTerms(files) (terms, error) {
	return terms{PostgresConfig: stack.PostgresConfig{Database: stack.Database{Name: "postgres", Logins: []stack.Login{}}}}, nil
}

// pipeline runs the tests of libpq_pipeline as its own driver does: a test passes if it exits with 0 and its protocol
// trace is the expected one.
func pipeline(ctx context.Context, w *world, from files, at place) (results, error) {
	path := filepath.Join(string(from), "bin", "libpq_pipeline")
	dir, err := os.MkdirTemp(w.Dir, "pipeline-")
	if err != nil {
		return nil, err
	}
	env := []string{"PGHOST=" + at.host, "PGPORT=" + at.port, "PGUSER=postgres", "PGPASSWORD=" + w.pg.Password(""), "PGOPTIONS=" + w.options}
	names, err := w.output(ctx, program{path: path, args: []string{"tests"}, dir: dir})
	if err != nil {
		return nil, err
	}
	got := make(results)
	for test := range strings.FieldsSeq(names) {
		trace := filepath.Join(dir, test+".trace")
		args := []string{"-r", "700", test, "dbname=postgres"}
		want, err := os.ReadFile(filepath.Join(string(from), "source/src/test/modules/libpq_pipeline/traces", test+".trace"))
		if err == nil {
			args = append([]string{"-t", trace}, args...)
		}
		got[test] = "ok"
		out, failed := w.output(ctx, program{path: path, args: args, dir: dir, env: env})
		if failed != nil {
			got[test] = firstLine([]byte(out))
		} else if err == nil {
			if sent, err := os.ReadFile(trace); err != nil {
				return nil, err
			} else if string(sent) != string(want) {
				got[test] = "another trace than expected"
			}
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	return got, nil
}

func regressTerms(files) (terms, error) {
	return terms{PostgresConfig: stack.PostgresConfig{
		Database: stack.Database{Name: "postgres", Logins: []stack.Login{}, Migrate: stack.NotMigrated},
		HBA:      "local all all trust", // the tests log in as roles without a password
		Settings: map[string]string{"max_prepared_transactions": "2"},
	}}, nil
}

// regress runs PostgreSQL's regression tests.
func regress(ctx context.Context, w *world, from files, at place) (results, error) {
	return pgRegress(ctx, w, from, at, "regress", "regress/pg_regress", "parallel_schedule", "--dlpath="+filepath.Join(string(from), "lib"), "--max-concurrent-tests=20")
}

// isolation runs PostgreSQL's isolation tests, with those that need prepared transactions.
func isolation(ctx context.Context, w *world, from files, at place) (results, error) {
	return pgRegress(ctx, w, from, at, "isolation", "isolation/pg_isolation_regress", "isolation_schedule", "prepared-transactions", "prepared-transactions-cic")
}

var regressLine = regexp.MustCompile(`(?m)^(?:test)?\s+(\S+)\s+\.\.\. (ok|FAILED|failed \(ignored\))`)

func pgRegress(ctx context.Context, w *world, from files, at place, folder, driver, schedule string, more ...string) (results, error) {
	input := filepath.Join(string(from), "source", "src", "test", folder)
	dir, err := os.MkdirTemp(w.Dir, folder+"-")
	if err != nil {
		return nil, err
	}
	if err := errors.Join(os.Chmod(dir, 0o755), w.pg.Give(dir)); err != nil {
		return nil, err
	}
	args := []string{
		"--host=" + at.sockets, "--port=" + at.port, "--user=postgres", "--bindir=" + w.pg.BinDir(),
		"--inputdir=" + input, "--outputdir=" + dir, "--schedule=" + filepath.Join(input, schedule),
	}
	out, failed := w.output(ctx, program{
		path: filepath.Join(w.pg.BinDir(), "../lib/pgxs/src/test", driver), args: append(args, more...), dir: dir, server: true,
	})
	got := make(results)
	for _, m := range regressLine.FindAllStringSubmatch(out, -1) {
		got[m[1]] = m[2]
		if m[2] == "ok" {
			continue
		}
		// A test that fails both ways has to fail in the same way.
		text, err := os.ReadFile(filepath.Join(dir, "results", m[1]+".out"))
		if err != nil {
			return nil, err
		}
		got[m[1]] += fmt.Sprintf(" %.4x", sha256.Sum256(text))
	}
	if failed != nil && (ctx.Err() != nil || len(got) == 0) {
		return nil, fmt.Errorf("%w: %s", failed, firstLine([]byte(out)))
	}
	return got, nil
}
