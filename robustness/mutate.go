package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/fencegate/fencegate/robustness/fault"
	"github.com/fencegate/fencegate/robustness/mutants"
	"github.com/fencegate/fencegate/robustness/run"
)

// runMutants runs each seeded bug until the judge has caught it. A bug that is not caught in its time is an error. With
// -sound it plays the same runs without the bugs: then a finding is an error.
func runMutants(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("mutants", flag.ContinueOnError)
	only := flags.String("only", "", "names, with commas between (default: all)")
	seed := flags.Uint64("seed", rand.Uint64(), "as of run")
	verbose := flags.Bool("v", false, "show the rounds")
	sound := flags.Bool("sound", false, "without the bugs, for a minute each: nothing may be found")
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 {
		return errUsage
	}
	names := list(*only)
	for _, name := range names {
		if !slices.ContainsFunc(mutants.All, func(m mutants.Mutant) bool { return m.Name == name }) {
			return fmt.Errorf("no mutant is called %q", name)
		}
	}
	play := catch
	if *sound {
		play = silent
	}
	var failed []string
	for _, m := range mutants.All {
		if len(names) > 0 && !slices.Contains(names, m.Name) {
			continue
		}
		if err := play(ctx, m, *seed, *verbose); err != nil {
			failed = append(failed, m.Name)
			fmt.Printf("%-28s %v\n", m.Name, err)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	if len(failed) > 0 {
		return fmt.Errorf("not as expected: %s", strings.Join(failed, ", "))
	}
	return nil
}

var errEscaped = errors.New("ESCAPED")

// catch runs one mutant, in short rounds.
func catch(ctx context.Context, m mutants.Mutant, seed uint64, verbose bool) error {
	var log bytes.Buffer
	o, err := options(m, seed, verbose, &log)
	if err != nil {
		return err
	}
	o.For, o.Until = m.Within, m.Caught
	result, err := run.Run(ctx, o)
	if err != nil && !errors.Is(err, run.ErrFound) {
		return fmt.Errorf("%w\n%s", err, log.String())
	}
	if !m.Caught(result.Kinds()) {
		return fmt.Errorf("%w: %s (expected: %s; found: %s)\n%s", errEscaped, m.What, strings.Join(m.Expect, " or "),
			strings.Join(result.Kinds(), ", "), result.Summary())
	}
	fmt.Printf("%-28s caught after %-8v %s\n", m.Name, result.Caught.Round(time.Second), strings.Join(result.Kinds(), ", "))
	return nil
}

// silent plays the run of a mutant without its bug.
func silent(ctx context.Context, m mutants.Mutant, seed uint64, verbose bool) error {
	var log bytes.Buffer
	m.Functions, m.Files = nil, nil
	o, err := options(m, seed, verbose, &log)
	if err != nil {
		return err
	}
	o.For = time.Minute
	result, err := run.Run(ctx, o)
	if err != nil {
		return fmt.Errorf("without its bug: %w\n%s", err, log.String())
	}
	fmt.Printf("%-28s silent for %v without its bug\n", m.Name, result.Lasted.Round(time.Second))
	return nil
}

// options returns the options of a mutant's run.
func options(m mutants.Mutant, seed uint64, verbose bool, log io.Writer) (run.Options, error) {
	o := run.Options{
		Round: 15 * time.Second, Seed: seed, Surfaces: m.Surfaces, Faults: m.Faults, Clients: 6, Resources: 3,
		MaxTTL: m.MaxTTL, Mutant: &m, Out: log, PostgresLeases: m.PostgresLeases, Redis: m.Redis, Balancer: m.Balancer,
	}
	if verbose {
		o.Out = io.MultiWriter(log, os.Stdout)
	}
	err := place(&o)
	if len(m.Functions)+len(m.Files) > 0 {
		o.Keep = "" // findings are expected
	}
	return o, err
}

func listFaults() error {
	for _, f := range fault.All {
		fmt.Printf("%-30s %s\n", f.Name, f.What)
	}
	return nil
}
