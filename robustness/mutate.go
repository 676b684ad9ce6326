package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/fencegate/fencegate/internal/mutants/table"
	"github.com/fencegate/fencegate/robustness/fault"
	"github.com/fencegate/fencegate/robustness/run"
)

const mutantRound = 15 * time.Second

// runMutant plays the run of a mutant until the judge has caught it. A bug that is not caught in its time is an error.
// A sound run is the same without the bug, for a minute: then a finding is the error.
func runMutant(ctx context.Context, o run.Options, name string, sound bool) error {
	m, err := table.Find(name)
	if err != nil {
		return err
	}
	if m.Run == nil {
		return fmt.Errorf("%s is caught by a test: go run ./internal/mutants %s, in the repository's root", name, name)
	}
	o.Surfaces, o.Faults, o.MaxTTL, o.Soak = m.Run.Surfaces, m.Run.Faults, m.Run.MaxTTL, m.Run.Soak
	o.PostgresLeases, o.Redis, o.Balancer = m.Run.PostgresLeases, m.Run.Redis, m.Run.Balancer
	if !o.Soak {
		o.Round, o.Clients, o.Resources = mutantRound, 6, 3
	}
	if sound {
		m, o.For = m.Sound(), time.Minute
	} else {
		o.For, o.Until, o.Keep = m.Run.Within, m.Run.Caught, "" // findings are expected
	}
	o.Mutant = &m
	result, err := run.Run(ctx, o)
	fmt.Print(result.Summary())
	switch {
	case sound || err != nil && !errors.Is(err, run.ErrFound), errors.Is(err, run.ErrUnchecked):
		return err
	case !m.Run.Caught(result.Kinds()):
		return fmt.Errorf("%s ESCAPED; expected: %s", name, strings.Join(m.Run.Expect, " or "))
	}
	fmt.Printf("caught after %v: %s\n", result.Caught.Round(time.Second), strings.Join(result.Kinds(), ", "))
	return nil
}

func listFaults() error {
	for _, f := range fault.All {
		fmt.Printf("%-30s %s\n", f.Name, f.What)
	}
	return nil
}
