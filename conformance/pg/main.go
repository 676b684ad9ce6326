// Command pg compares the behaviour of PostgreSQL clients through the relay of gateway/pgwire with direct connections.
//
// Drivers without support for fencegate write both ways, each with the current grant,
// with a stale one and with none: both ways must get the fence's answer. A driver
// that is missing on this machine is reported and omitted, unless -all is given.
//
// Then drivers connect with only what `fencegate run` gives a command: each must present the grant in the ways that
// docs/frameworks.md lists for it.
//
// With -suites the test suites of PostgreSQL 15 and of pgx run both ways, each on a new server: every test must have
// the same outcome, except for those that a suite expects to differ.
//
// It prints tables, and exits with 1 if something differs.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

func main() {
	all := flag.Bool("all", false, "fail where a driver is missing")
	folder := flag.String("drivers", "drivers", "folder of the drivers' scripts; empty: no drivers")
	poolers := flag.Bool("poolers", false, "of the drivers, PgBouncer alone")
	from := flag.String("suites", "", "folder that ./prepare filled; empty: no suites")
	only := flag.String("only", "", "names of suites, with semicolons between them; empty: all")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "conformance-pg: %q is no flag\n", flag.Arg(0))
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(ctx, 40*time.Minute)
	wrong, err := 0, error(nil)
	if *folder != "" {
		wrong, err = compareDrivers(ctx, *folder, *all, *poolers)
	}
	if err == nil && *from != "" {
		var n int
		n, err = compareSuites(ctx, files(*from), strings.FieldsFunc(*only, func(r rune) bool { return r == ';' }))
		wrong += n
	}
	cancel()
	stop()
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "conformance-pg:", err)
		os.Exit(1)
	case wrong > 0:
		fmt.Fprintf(os.Stderr, "conformance-pg: %d outcomes are not as they should be\n", wrong)
		os.Exit(1)
	}
}
