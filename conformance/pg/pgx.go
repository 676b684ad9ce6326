package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/fencegate/fencegate/internal/stack"
)

// pgxTerms are the terms of pgx's own CI.
func pgxTerms(from files) (terms, error) {
	hba, err := os.ReadFile(filepath.Join(string(from), "pgx", "testsetup", "pg_hba.conf"))
	if err != nil {
		return terms{}, err
	}
	t := terms{certificate: make(map[string][]byte), PostgresConfig: stack.PostgresConfig{
		HBA: string(hba), Database: stack.Database{Name: "pgx_test", Logins: []stack.Login{}},
	}}
	for name, of := range map[string]string{"server.crt": "localhost.crt", "server.key": "localhost.key", "root.crt": "ca.pem"} {
		if t.certificate[name], err = pgxFile(from, of); err != nil {
			return terms{}, err
		}
	}
	return t, nil
}

func pgxFile(from files, name string) ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(string(from), "pgx", "testsetup", "certs", name+".b64"))
	if err != nil {
		return nil, err
	}
	return base64.StdEncoding.DecodeString(strings.Join(strings.Fields(string(text)), ""))
}

// pgxTests runs the tests of each of pgx's packages.
func pgxTests(ctx context.Context, w *world, from files, at place) (results, error) {
	root := filepath.Join(string(from), "pgx")
	setup := program{
		path: filepath.Join(w.pg.BinDir(), "psql"), dir: w.Dir,
		args: []string{"-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", filepath.Join(root, "testsetup/postgresql_setup.sql")},
		env:  []string{"PGHOST=" + w.direct.host, "PGPORT=" + w.direct.port, "PGUSER=postgres", "PGDATABASE=pgx_test", "PGPASSWORD=" + w.pg.Password("")},
	}
	if out, err := w.output(ctx, setup); err != nil {
		return nil, fmt.Errorf("psql: %w: %s", err, out)
	}
	env, err := pgxEnv(w, from, at)
	if err != nil {
		return nil, err
	}
	got := make(results)
	err = filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.Name() != "pgx.test" {
			return err
		}
		name, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		return onePackage(ctx, w, path, name, env, got)
	})
	return got, err
}

// verdict matches the line at a test's end. The mark of -test.v=test2json distinguishes it from the tests' output.
var verdict = regexp.MustCompile(`\x16 *--- (PASS|FAIL|SKIP): (\S+) \(`)

// scratch matches a folder that is named after a test, with a random number at its end.
var scratch = regexp.MustCompile(`TMPDIR/(\w*?)[0-9]+/`)

func onePackage(ctx context.Context, w *world, path, name string, env []string, got results) error {
	dir, err := os.MkdirTemp(w.Dir, "pgx-")
	if err != nil {
		return err
	}
	out, failed := w.output(ctx, program{
		path: path, args: []string{"-test.v=test2json", "-test.timeout=10m"}, dir: filepath.Dir(path), env: append(env, "TMPDIR="+dir),
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	explained := false
	for test, outcome := range outcomesOf(out, name, dir) {
		got[test] = outcome
		explained = explained || outcome == "failed"
	}
	if failed != nil && !explained {
		got[name] = failed.Error() + ": " + firstLine([]byte(out))
	}
	return nil
}

func outcomesOf(out, name, dir string) results {
	got := make(results)
	for _, m := range verdict.FindAllStringSubmatch(out, -1) {
		test := scratch.ReplaceAllString(strings.ReplaceAll(m[2], dir, "TMPDIR"), "TMPDIR/${1}N/")
		got[name+"."+test] = map[string]string{"PASS": "ok", "SKIP": "skip", "FAIL": "failed"}[m[1]]
	}
	return got
}

func pgxEnv(w *world, from files, at place) ([]string, error) {
	certificates := make(map[string]string)
	for _, name := range []string{"ca.pem", "pgx_sslcert.crt", "pgx_sslcert.key"} {
		text, err := pgxFile(from, name)
		if err != nil {
			return nil, err
		}
		certificates[name] = filepath.Join(w.Dir, name)
		if err := os.WriteFile(certificates[name], text, 0o600); err != nil {
			return nil, err
		}
	}
	rest := " port=" + at.port + " dbname=pgx_test"
	if w.options != "" {
		rest += " options='" + w.options + "'"
	}
	plain := func(user string) string { return "host=" + at.host + " user=" + user + " password=secret" + rest }
	secure := "host=localhost sslmode=verify-full sslrootcert=" + certificates["ca.pem"] + rest
	return []string{
		"PGX_TEST_DATABASE=" + plain("pgx_md5"),
		"PGX_TEST_UNIX_SOCKET_CONN_STRING=host=" + at.sockets + " user=postgres" + rest,
		"PGX_TEST_TCP_CONN_STRING=" + plain("pgx_md5"),
		"PGX_TEST_MD5_PASSWORD_CONN_STRING=" + plain("pgx_md5"),
		"PGX_TEST_PLAIN_PASSWORD_CONN_STRING=" + plain("pgx_pw"),
		"PGX_TEST_SCRAM_PASSWORD_CONN_STRING=" + plain("pgx_scram") + " channel_binding=disable",
		"PGX_TEST_SCRAM_PLUS_CONN_STRING=" + secure + " user=pgx_ssl password=secret channel_binding=require",
		"PGX_TEST_TLS_CONN_STRING=" + secure + " user=pgx_ssl password=secret channel_binding=disable",
		"PGX_TEST_TLS_CLIENT_CONN_STRING=" + secure + " user=pgx_sslcert sslcert=" + certificates["pgx_sslcert.crt"] + " sslkey=" + certificates["pgx_sslcert.key"],
		"PGX_SSL_PASSWORD=certpw",
	}, nil
}
