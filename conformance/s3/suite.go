package main

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/internal/stack"
)

// Selections of the tests of s3-tests, by mark and by name: all except those that need the server's clock to be changed,
// other tiers to be configured or Ceph's own extensions, and those of HTML forms.
const (
	selection = "not lifecycle and not storage_class and not bucket_logging and not cloud_transition and not cloud_restore"
	noForms   = "not post_object"
)

// settings configures s3-tests. All its users are root: there are no other accounts.
const settings = `[DEFAULT]
host = %s
port = %s
is_secure = False
ssl_verify = False
[fixtures]
bucket prefix = conf-{random}-
iam name prefix = conf-
iam path prefix = /conf/
`

const user = `[%s]
display_name = %s
user_id = %s
email = conformance@example.com
api_name = us-east-1
access_key = %s
secret_key = %s
tenant = conformance
`

// suite is a run of s3-tests.
type suite struct {
	python, checkout string
	log              string // file for its output
	only             string // a part, by pytest's -k
}

// compare runs s3-tests, and counts the tests that got worse.
func (s suite) compare(ctx context.Context, update bool) (worse int, err error) {
	w, err := start(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	found, err := s.run(ctx, w)
	if err != nil {
		return 0, err
	}
	found.print()
	return found.compare("expected.txt", s.only != "", update)
}

// run runs s3-tests against a server whose buckets need no grant.
func (s suite) run(ctx context.Context, w *world) (all results, err error) {
	srv, err := w.server(ctx, objects.NoRule())
	if err != nil {
		return nil, err
	}
	config, report := filepath.Join(w.Dir, "s3tests.conf"), filepath.Join(w.Dir, "report.xml")
	if err := os.WriteFile(config, []byte(configOf(srv)), 0o600); err != nil {
		return nil, err
	}
	names := noForms
	if s.only != "" {
		names += " and (" + s.only + ")"
	}
	args := []string{"-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", "--junitxml=" + report, "-m", selection, "-k", names, "s3tests/functional/test_s3.py", "s3tests/functional/test_headers.py"}
	cmd := exec.CommandContext(ctx, s.python, args...)
	cmd.Dir = s.checkout
	cmd.Env = append(os.Environ(), "S3TEST_CONF="+config, "PYTHONDONTWRITEBYTECODE=1", "AWS_EC2_METADATA_DISABLED=true")
	log, err := os.Create(s.log)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	cmd.Stdout, cmd.Stderr = log, log
	fmt.Fprintln(os.Stderr, "conformance-s3: running s3-tests, which takes some minutes; its output goes to", s.log)
	ran := cmd.Run()
	all, err = read(report)
	if err != nil {
		return nil, errors.Join(ran, err) // a failing test is no error; a suite without a report is
	}
	return all, nil
}

func configOf(srv *stack.S3) string {
	host, port, _ := net.SplitHostPort(srv.Addr)
	var text strings.Builder
	_, _ = fmt.Fprintf(&text, settings, host, port)
	for _, section := range []string{"s3 main", "s3 alt", "s3 tenant", "iam", "iam root", "iam alt root"} {
		_, _ = fmt.Fprintf(&text, user, section, srv.Root.AccessKeyID, srv.Root.AccessKeyID, srv.Root.AccessKeyID, srv.Root.SecretAccessKey)
	}
	return text.String()
}

// results are the outcomes by test: passed, failed or skipped.
type results map[string]string

const passed, failed, skipped = "passed", "failed", "skipped"

// read parses a report in JUnit's format.
func read(path string) (results, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var report struct {
		Cases []struct {
			Name    string    `xml:"name,attr"`
			Class   string    `xml:"classname,attr"`
			Failure *struct{} `xml:"failure"`
			Error   *struct{} `xml:"error"`
			Skipped *struct{} `xml:"skipped"`
		} `xml:"testsuite>testcase"`
	}
	if err := xml.Unmarshal(data, &report); err != nil {
		return nil, fmt.Errorf("read the report of s3-tests: %w", err)
	}
	all := results{}
	for _, c := range report.Cases {
		name := c.Class[strings.LastIndex(c.Class, ".")+1:] + "::" + c.Name
		switch {
		case c.Failure != nil || c.Error != nil:
			all[name] = failed
		case all[name] == failed: // a test's clean-up is a separate case
		case c.Skipped != nil:
			all[name] = skipped
		default:
			all[name] = passed
		}
	}
	if len(all) == 0 {
		return nil, errors.New("s3-tests ran no test")
	}
	return all, nil
}
