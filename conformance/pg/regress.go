package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
)

func regressTerms(files) (terms, error) {
	return terms{
		hba:      "local all all trust", // the tests log in as roles without a password
		settings: map[string]string{"max_prepared_transactions": "2"},
	}, nil
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
	dir, err := os.MkdirTemp(w.dir, folder+"-")
	if err != nil {
		return nil, err
	}
	if err := errors.Join(os.Chmod(dir, 0o755), w.give(dir)); err != nil {
		return nil, err
	}
	args := []string{
		"--host=" + at.sockets, "--port=" + at.port, "--user=postgres", "--bindir=" + w.server.BinDir(),
		"--inputdir=" + input, "--outputdir=" + dir, "--schedule=" + filepath.Join(input, schedule),
	}
	out, failed := w.output(ctx, program{
		path: filepath.Join(w.server.BinDir(), "../lib/pgxs/src/test", driver), args: append(args, more...), dir: dir, server: true,
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
