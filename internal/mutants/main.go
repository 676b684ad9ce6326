// Command mutants removes safeguards of the leases and of the gateway, one at a time, and shows that a test then fails.
// A replacement that does not apply to the current text, or does not compile, is an error.
//
//	go run ./internal/mutants            all of them
//	go run ./internal/mutants NAME...    some
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
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
func all() []mutant { return slices.Concat(grants, admission, service) }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, names []string) error {
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
		if err := m.catch(ctx, ".", dir); errors.Is(err, errEscaped) {
			mark = "ESCAPED"
			escaped = append(escaped, m.name)
		} else if err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		fmt.Printf("%-24s %-9s %s, %v\n", m.name, mark, m.test, time.Since(begun).Round(time.Second))
	}
	if len(escaped) > 0 {
		return fmt.Errorf("no test saw that these safeguards were gone: %s", strings.Join(escaped, ", "))
	}
	return nil
}

var errEscaped = errors.New("escaped")

// catch runs the mutant's test on the changed text.
func (m mutant) catch(ctx context.Context, root, dir string) error {
	text, err := m.apply(root)
	if err != nil {
		return err
	}
	changed := filepath.Join(dir, m.name+filepath.Ext(m.file))
	original, err := filepath.Abs(filepath.Join(root, m.file))
	if err != nil {
		return err
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{original: changed}})
	if err != nil {
		return err
	}
	list := filepath.Join(dir, m.name+".json")
	if err := errors.Join(os.WriteFile(changed, []byte(text), 0o600), os.WriteFile(list, overlay, 0o600)); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "test", "-overlay", list, "-vet=off", "-count=1", "-timeout=3m",
		"-run", "^"+m.test+"$", "./"+m.folder())
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	switch {
	case err == nil && regexp.MustCompile(`no tests to run`).Match(out):
		return fmt.Errorf("there is no %s", m.test)
	case err == nil:
		return errEscaped
	case !strings.Contains(string(out), "--- FAIL: "+m.test):
		return fmt.Errorf("the test did not fail by itself: %w\n%s", err, out)
	}
	return nil
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
