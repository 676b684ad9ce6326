// Command mutants seeds the bugs of package table into the product, one at a time, and shows that each is caught: the
// named test, which passes without it, fails, or the judge of a run of robustness finds it. A text that does not apply, or
// a program that does not compile, is an error.
//
//	go run ./internal/mutants [-kind tests|runs|all] [-sound] [-build] [-plain] [-v] [NAME...]
//
// Without a name it tries all of the kind. It needs the repository's root as its working folder; runs need Linux and
// root.
package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/fencegate/fencegate/internal/mutants/table"
)

// program is the way in which mutants are tried.
type program struct {
	root, dir string // the repository, and a folder for changed texts
	sound     bool   // without the bugs: nothing may be found
	build     bool   // compile only
	plain     bool   // the whole package of each test, as developers run it
	out       io.Writer
	runs      string // robustness; "": not built yet
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	p := program{root: ".", out: io.Discard}
	kind := flag.String("kind", "", "tests, runs or all (default: tests; of names, all)")
	flag.BoolVar(&p.sound, "sound", false, "play the same tests and runs without the bugs: nothing may be found")
	flag.BoolVar(&p.build, "build", false, "only compile what is changed")
	flag.BoolVar(&p.plain, "plain", false, "run the whole package of each test")
	verbose := flag.Bool("v", false, "show the output of tests and runs")
	flag.Parse()
	if *verbose {
		p.out = os.Stdout
	}
	wanted, err := choose(*kind, flag.Args())
	if err == nil {
		err = p.try(ctx, wanted)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

// choose returns the mutants with these names, or all of a kind.
func choose(kind string, names []string) (wanted []table.Mutant, err error) {
	for _, name := range names {
		m, err := table.Find(name)
		if err != nil {
			return nil, err
		}
		wanted = append(wanted, m)
	}
	if len(names) > 0 {
		return wanted, nil
	}
	for _, m := range table.All {
		switch cmp.Or(kind, "tests") {
		case "tests":
			if m.Run != nil {
				continue
			}
		case "runs":
			if m.Run == nil {
				continue
			}
		case "all":
		default:
			return nil, fmt.Errorf("-kind is tests, runs or all, not %q", kind)
		}
		wanted = append(wanted, m)
	}
	return wanted, nil
}

var errEscaped = errors.New("ESCAPED")

// try tries one mutant after the other. It reports each, and fails if one was not as expected.
func (p *program) try(ctx context.Context, wanted []table.Mutant) (err error) {
	if p.dir, err = os.MkdirTemp("", "fencegate-mutants-"); err != nil {
		return err
	}
	defer os.RemoveAll(p.dir)
	if err := p.pass(ctx, wanted); err != nil {
		return err
	}
	var failed []string
	for _, m := range wanted {
		begun, attempt := time.Now(), p.test
		if m.Run != nil {
			attempt = p.run
		}
		if p.sound {
			m = m.Sound()
		}
		text, err := attempt(ctx, m)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			failed, text = append(failed, m.Name), err.Error()
		}
		fmt.Printf("%-31s %4.0f s  %s\n", m.Name, time.Since(begun).Seconds(), text)
	}
	if len(failed) > 0 {
		return fmt.Errorf("not as expected: %s", strings.Join(failed, ", "))
	}
	return nil
}

// pass plays the mutants' tests without a bug, once, those of a package together. One that fails then would catch
// anything.
func (p *program) pass(ctx context.Context, wanted []table.Mutant) error {
	if p.build || p.sound {
		return nil
	}
	tests := map[string][]string{}
	for _, m := range wanted {
		if folder, name := m.InTest(); m.Run == nil && !slices.Contains(tests[folder], name) {
			tests[folder] = append(tests[folder], name)
		}
	}
	for _, folder := range slices.Sorted(maps.Keys(tests)) {
		begun, pattern := time.Now(), "^("+strings.Join(tests[folder], "|")+")$"
		if p.plain {
			pattern = ""
		}
		out, err := p.command(ctx, folder, "go", "test", "-vet=off", "-count=1", "-timeout=10m", "-run", pattern, ".")
		if err != nil {
			return fmt.Errorf("%s fails without a bug: %w\n%s", folder, err, out)
		}
		fmt.Printf("%-31s %4.0f s  passes without a bug\n", folder, time.Since(begun).Seconds())
	}
	return nil
}

var failure = regexp.MustCompile(`(?m)^--- FAIL: (\w+)`)

// test runs a mutant's test on the changed text, and says which tests failed.
func (p *program) test(ctx context.Context, m table.Mutant) (string, error) {
	overlay, err := p.overlay(m)
	if err != nil {
		return "", err
	}
	folder, name := m.InTest()
	pattern := "^" + name + "$"
	switch {
	case p.build:
		pattern = "^$"
	case p.plain:
		pattern = ""
	}
	out, err := p.command(ctx, folder, "go", "test", "-overlay", overlay, "-vet=off", "-count=1", "-timeout=10m", "-failfast", "-run", pattern, ".")
	var failed []string
	for _, found := range failure.FindAllSubmatch(out, -1) {
		failed = append(failed, string(found[1]))
	}
	switch {
	case p.build || p.sound:
		return p.fine(out, err)
	case err == nil && bytes.Contains(out, []byte("no tests to run")):
		return "", fmt.Errorf("there is no %s", m.Test)
	case err == nil:
		return "", fmt.Errorf("%w %s", errEscaped, m.Test)
	case len(failed) == 0:
		return "", fmt.Errorf("no test failed by itself: %w\n%s", err, out)
	}
	return "caught by " + strings.Join(failed, " "), nil
}

// run lets robustness play the mutant's run, whose last line says when the judge found what.
func (p *program) run(ctx context.Context, m table.Mutant) (string, error) {
	overlay, err := p.overlay(m)
	if err != nil {
		return "", err
	}
	if p.build {
		return p.fine(p.command(ctx, ".", "go", "build", "-overlay", overlay, "-o", os.DevNull, "./cmd/fencegate"))
	}
	if p.runs == "" {
		program := filepath.Join(p.dir, "robustness")
		if out, err := p.command(ctx, "robustness", "go", "build", "-o", program, "."); err != nil {
			return "", fmt.Errorf("%w\n%s", err, out)
		}
		p.runs = program
	}
	args := []string{"run", "-mutant", m.Name}
	if p.sound {
		args = append(args, "-sound")
	}
	out, err := p.command(ctx, "robustness", p.runs, args...)
	if p.sound || err != nil {
		return p.fine(out, err)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1], nil
}

// fine describes the result of a command that has to succeed.
func (p *program) fine(out []byte, err error) (string, error) {
	switch {
	case err != nil:
		return "", fmt.Errorf("%w\n%s", err, out)
	case p.build:
		return "compiles", nil
	}
	return "nothing was found without its bug", nil
}

// overlay writes a mutant's files, and the list of them for go build.
func (p *program) overlay(m table.Mutant) (string, error) {
	if _, err := m.SQL(p.root); err != nil {
		return "", err
	}
	files, err := m.Overlay(p.root, p.dir)
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(map[string]any{"Replace": files})
	if err != nil {
		return "", err
	}
	list := filepath.Join(p.dir, "overlay.json")
	return list, os.WriteFile(list, text, 0o600)
}

// command runs a program in a folder of the repository, and returns its output. When ctx ends, the program may clean up.
func (p *program) command(ctx context.Context, folder, name string, args ...string) ([]byte, error) {
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = filepath.Join(p.root, folder)
	cmd.Stdout = io.MultiWriter(&out, p.out)
	cmd.Stderr = cmd.Stdout
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	err := cmd.Run()
	return out.Bytes(), err
}
