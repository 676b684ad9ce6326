// Command bench measures fencegate against its peers, on servers of its own:
//
//	bench [SUBJECT…] [flags]
//
// Without subjects it measures all of them, except for compare. It ends with a table of all goals. It exits with 1 if an
// operation failed, and with -strict also if a goal is missed.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/fencegate/fencegate/bench/internal/run"
	"github.com/fencegate/fencegate/internal/child"
	"github.com/fencegate/fencegate/internal/stack"
)

// subject is what is measured together.
type subject struct {
	name    string
	workers []int // numbers of clients or callers
	slice   time.Duration
	rounds  int
	parts   []part
	// contenders are the names that -only may have; compare has none.
	contenders []string
	base       bool // -base is for it
	// whole replaces the parts' own functions, if they share servers; parts then are what it may be asked for.
	whole func(context.Context, *bench, *stack.Stack)
	alone bool // not measured unless it is named
}

// part is measured on servers of its own. It fails by [run.Check].
type part struct {
	name  string
	run   func(context.Context, *bench, *stack.Stack)
	extra bool // not measured unless it is named
}

func subjects() []subject {
	return []subject{lockSubject(), fenceSubject(), apiSubject(), scaleSubject(), pgwireSubject(), s3Subject(), compareSubject()}
}

// bench is a run of one subject.
type bench struct {
	*run.Bench

	base      string       // commit to compare with
	commits   []string     // fence: fast, slow
	sizes     []objectSize // s3
	resources []int        // scale
}

// goalsFile is the variable that makes this program hand its goals to the one that started it, over this file.
const goalsFile = "BENCH_GOALS"

func main() {
	if config := os.Getenv(serverConfig); config != "" {
		os.Exit(report(beServer(config)))
	}
	os.Exit(measure(os.Args[1:]))
}

func report(err error) int {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		return 1
	}
	return 0
}

func measure(args []string) int {
	first := slices.IndexFunc(append(slices.Clip(args), "-"), func(a string) bool { return strings.HasPrefix(a, "-") })
	named, flags := args[:first], args[first:]
	chosen := slices.DeleteFunc(subjects(), func(s subject) bool {
		return len(named) > 0 && !slices.Contains(named, s.name) || len(named) == 0 && s.alone
	})
	b, strict, err := parse(flags)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err == nil && len(chosen) < len(named):
		err = errors.New("no such subject: -h lists them")
	case err == nil && len(chosen) > 1 && len(b.Parts)+len(b.Only) > 0:
		err = errors.New("-part and -only need one subject")
	}
	for _, s := range chosen {
		if err == nil {
			err = s.check(b)
		}
	}
	if err != nil {
		report(err)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var goals []run.Goal
	if len(chosen) == 1 {
		err = chosen[0].measure(ctx, b)
		goals = b.Goals
		if file, _ := strconv.Atoi(os.Getenv(goalsFile)); file > 0 {
			return report(errors.Join(err, json.NewEncoder(os.NewFile(uintptr(file), "goals")).Encode(goals)))
		}
	}
	for _, s := range chosen {
		if len(chosen) > 1 && ctx.Err() == nil {
			some, failed := inProcess(ctx, s.name, flags)
			goals, err = append(goals, some...), errors.Join(err, failed)
		}
	}
	if strict && len(goals) == 0 {
		err = errors.Join(err, errors.New("-strict: there was no goal"))
	}
	missed, compulsory := run.Table(os.Stdout, goals)
	if code := report(errors.Join(err, ctx.Err())); code != 0 || compulsory > 0 || missed > 0 && strict {
		return 1
	}
	return 0
}

func parse(args []string) (b *bench, strict bool, err error) {
	b = &bench{Bench: &run.Bench{Out: os.Stdout}}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.Usage = func() {
		fmt.Fprintln(flags.Output(), "bench [SUBJECT…] [flags]; subjects and their parts, extra ones in brackets:")
		for _, s := range subjects() {
			fmt.Fprintf(flags.Output(), "  %s:", s.name)
			for _, p := range s.parts {
				fmt.Fprintf(flags.Output(), map[bool]string{true: " [%s]", false: " %s"}[p.extra], p.name)
			}
			fmt.Fprintln(flags.Output())
		}
		flags.PrintDefaults()
	}
	text := func(text string) (string, error) { return text, nil }
	list(flags, &b.Parts, text, "part", "", "`parts` to measure; default: all that are not extra")
	list(flags, &b.Only, text, "only", "", "`contenders` to measure; default: all")
	list(flags, &b.Workers, positive, "clients", "", "`numbers` of clients or callers; default: the subject's")
	list(flags, &b.commits, text, "commit", "fast,slow", "fence: commits as the disk is, delayed ones, or both")
	list(flags, &b.sizes, parseSize, "sizes", "4KiB,1MiB,256MiB", "s3: `sizes` of objects; more than 16 MiB are measured with one client")
	list(flags, &b.resources, positive, "resources", "1000,10000,100000,1000000", "scale: `numbers` of resources")
	flags.DurationVar(&b.Slice, "slice", 0, "how long a contender runs before the next one; default: the subject's")
	flags.IntVar(&b.Rounds, "rounds", 0, "how often each contender has its slice; default: the subject's")
	flags.BoolVar(&b.Quick, "quick", false, "few short rounds and small data: to see that it runs")
	flags.BoolVar(&strict, "strict", false, "exit with 1 when a goal is missed")
	flags.StringVar(&b.Data, "data", "", "`folder` below which servers have their files; default: the system's temporary folder")
	flags.StringVar(&b.base, "base", "", "compare (required), fence: the `commit` to compare the tree with")
	if err = flags.Parse(args); err == nil && flags.NArg() > 0 {
		err = fmt.Errorf("subjects come before flags: %s", flags.Arg(0))
	}
	return b, strict, err
}

// list is a flag with commas.
func list[T any](flags *flag.FlagSet, into *[]T, parse func(string) (T, error), name, value, usage string) {
	set := func(text string) error {
		*into = nil
		for one := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == ',' }) {
			v, err := parse(one)
			if err != nil {
				return err
			}
			*into = append(*into, v)
		}
		return nil
	}
	run.Check(set(value))
	if value != "" {
		usage += "; default: " + value
	}
	flags.Func(name, usage, func(text string) error {
		err := set(text)
		if err == nil && len(*into) == 0 {
			err = errors.New("it is empty")
		}
		return err
	})
}

func positive(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err == nil && n < 1 {
		err = errors.New("it is not positive")
	}
	return n, err
}

// check refuses choices that select nothing of the subject.
func (s subject) check(b *bench) error {
	for _, name := range b.Parts {
		if !slices.ContainsFunc(s.parts, func(p part) bool { return p.name == name }) {
			return fmt.Errorf("%s has no part %q: -h lists them", s.name, name)
		}
	}
	for _, name := range b.Only {
		if !slices.Contains(s.contenders, name) {
			return fmt.Errorf("%s has no contender %q, but: %s", s.name, name, strings.Join(s.contenders, ", "))
		}
	}
	if b.base != "" && !s.base {
		return fmt.Errorf("%s does not compare with a commit: -base is for fence and compare", s.name)
	}
	return nil
}

// measure measures the subject in this process.
func (s subject) measure(ctx context.Context, b *bench) (err error) {
	defer run.Catch(&err)
	if b.Quick {
		s.slice, s.rounds, s.workers = 300*time.Millisecond, min(s.rounds, 3), s.workers[:min(2, len(s.workers))]
	}
	b.Subject, b.Slice, b.Rounds = s.name, cmp.Or(b.Slice, s.slice), cmp.Or(b.Rounds, s.rounds)
	if len(b.Workers) == 0 {
		b.Workers = s.workers
	}
	if s.whole != nil {
		s.parts = []part{{name: s.name, run: s.whole}}
	}
	for _, p := range s.parts {
		if ctx.Err() == nil && (s.whole != nil || b.Wants(p.name, p.extra)) {
			b.Part(p.name)
			if failed := onStack(b, func(servers *stack.Stack) { p.run(ctx, b, servers) }); failed != nil {
				b.Printf("failed: %v\n", failed)
				err = errors.Join(err, fmt.Errorf("%s, %s: %w", s.name, p.name, failed)) // other parts are measured all the same
			}
		}
	}
	if missing := b.Missing(); len(missing) > 0 && ctx.Err() == nil {
		err = errors.Join(err, fmt.Errorf("-only: these parts, on this machine, have no %s", strings.Join(missing, ", ")))
	}
	return err
}

// onStack calls f with a stack, and ends its servers.
func onStack(b *bench, f func(*stack.Stack)) (err error) {
	s, err := stack.New(b.Data)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	defer run.Catch(&err)
	f(s)
	return nil
}

func withStack(b *bench, f func(*stack.Stack)) { run.Check(onStack(b, f)) }

// inProcess measures a subject in a process of its own, so that none finds the memory and goroutines of another.
func inProcess(ctx context.Context, subject string, flags []string) (goals []run.Goal, err error) {
	defer run.Catch(&err)
	in, out, err := os.Pipe()
	run.Check(err)
	defer func() { _ = in.Close() }()
	cmd := exec.CommandContext(ctx, run.Must(os.Executable()), append([]string{subject}, flags...)...)
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = os.Stdout, os.Stderr, []*os.File{out}
	cmd.Env = append(os.Environ(), goalsFile+"=3")
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	run.Check(errors.Join(cmd.Start(), out.Close()))
	run.Check(child.Adopt(cmd.Process.Pid, syscall.SIGTERM))
	defer child.Disown(cmd.Process.Pid)
	unread := json.NewDecoder(in).Decode(&goals)
	if err := cmd.Wait(); err != nil {
		return goals, fmt.Errorf("%s: %w", subject, err)
	}
	return goals, unread
}
