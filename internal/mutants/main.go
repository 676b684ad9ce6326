// Command mutants removes safeguards of the leases and of the gateway, one at a time, and shows that a test then fails.
// A replacement that does not apply to the current text, or does not compile, is an error.
//
//	go run ./internal/mutants [-plain] [NAME...]
//
// Without a name it tries all of them. With -plain it runs the whole package of the test, as developers do, instead of
// the test alone.
package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// mutant is a bug: a file's text without a safeguard.
type mutant struct {
	name string
	what string // the removed safeguard
	file string // below the root of the repository
	old  string // occurs exactly once
	new  string
	in   string // the folder of the test's package; "": lock
	test string // that fails
}

// folder is the folder of the test's package.
func (m mutant) folder() string { return cmp.Or(m.in, "lock") }

// all lists the mutants of the leases and of the gateway.
func all() []mutant { return slices.Concat(grants, admission, clocked, service) }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	plain := flag.Bool("plain", false, "run the whole package of each test")
	flag.Parse()
	err := run(ctx, *plain, flag.Args())
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, plain bool, names []string) error {
	for _, name := range names {
		if !slices.ContainsFunc(all(), func(m mutant) bool { return m.name == name }) {
			return fmt.Errorf("no mutant is called %q", name)
		}
	}
	dir, err := os.MkdirTemp("", "fencegate-mutants-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var escaped []string
	for _, m := range all() {
		if len(names) > 0 && !slices.Contains(names, m.name) {
			continue
		}
		begun := time.Now()
		mark := "caught by"
		failed, err := m.catch(ctx, ".", dir, plain)
		switch {
		case errors.Is(err, errEscaped):
			mark, failed = "ESCAPED", []string{m.test}
			escaped = append(escaped, m.name)
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			mark, failed = "BROKEN", []string{err.Error()}
			escaped = append(escaped, m.name)
		}
		fmt.Printf("%-24s %-9s %s, %v\n", m.name, mark, strings.Join(failed, " "), time.Since(begun).Round(time.Second))
	}
	if len(escaped) > 0 {
		return fmt.Errorf("no test of these packages saw that these safeguards were gone, or they do not compile: %s", strings.Join(escaped, ", "))
	}
	return nil
}

var errEscaped = errors.New("escaped")

var failure = regexp.MustCompile(`(?m)^--- FAIL: (\w+)`)

// catch runs the mutant's test on the changed text, or its whole package, and returns the tests that failed.
func (m mutant) catch(ctx context.Context, root, dir string, plain bool) ([]string, error) {
	text, err := m.apply(root)
	if err != nil {
		return nil, err
	}
	changed := filepath.Join(dir, m.name+filepath.Ext(m.file))
	original, err := filepath.Abs(filepath.Join(root, m.file))
	if err != nil {
		return nil, err
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{original: changed}})
	if err != nil {
		return nil, err
	}
	list := filepath.Join(dir, m.name+".json")
	if err := errors.Join(os.WriteFile(changed, []byte(text), 0o600), os.WriteFile(list, overlay, 0o600)); err != nil {
		return nil, err
	}
	args := []string{"test", "-overlay", list, "-vet=off", "-count=1", "-timeout=10m", "-failfast"}
	if !plain {
		args = append(args, "-run", "^"+m.test+"$")
	}
	cmd := exec.CommandContext(ctx, "go", append(args, "./"+m.folder())...)
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	var failed []string
	for _, found := range failure.FindAllSubmatch(out, -1) {
		failed = append(failed, string(found[1]))
	}
	switch {
	case err == nil && bytes.Contains(out, []byte("no tests to run")):
		return nil, fmt.Errorf("there is no %s", m.test)
	case err == nil:
		return nil, errEscaped
	case len(failed) == 0:
		return nil, fmt.Errorf("no test failed by itself: %w\n%s", err, out)
	}
	return failed, nil
}

// apply returns the file's text without the safeguard.
func (m mutant) apply(root string) (string, error) {
	text, err := os.ReadFile(filepath.Join(root, m.file))
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(text), m.old); n != 1 {
		return "", fmt.Errorf("%s has this text %d times, not once: %q", m.file, n, m.old)
	}
	return strings.Replace(string(text), m.old, m.new, 1), nil
}
