package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
)

func pipelineTerms(files) (terms, error) { return terms{fenced: "postgres"}, nil }

// pipeline runs the tests of libpq_pipeline as its own driver does: a test passes if it exits with 0 and its protocol
// trace is the expected one.
func pipeline(ctx context.Context, w *world, from files, at place) (results, error) {
	path := filepath.Join(string(from), "bin", "libpq_pipeline")
	dir, err := os.MkdirTemp(w.dir, "pipeline-")
	if err != nil {
		return nil, err
	}
	env := []string{"PGHOST=" + at.host, "PGPORT=" + at.port, "PGUSER=postgres", "PGPASSWORD=" + w.password, "PGOPTIONS=" + w.options}
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
