// Command robustness runs the whole product as processes on this machine, under every fault, and judges the results:
// see docs/robustness.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/fencegate/fencegate/robustness/client"
	"github.com/fencegate/fencegate/robustness/run"
)

const usage = `usage: robustness run [-for 10m] [-seed N] [-only SURFACES] [-faults NAMES] [-async] [-quick] …
       robustness run -mutant NAME [-sound]
       robustness faults
All of them are for the folder robustness of the repository.
Exit codes: 1: a promise was broken, or the run could not check; 3: slow, nothing unsafe; see docs/robustness.md`

// The exit codes beside 0.
const (
	exitFound = 1  // a promise was broken, or the run could not check
	exitSlow  = 3  // nothing unsafe was found, and something took too long although the machine was fast enough, or grew
	exitUsage = 64 // a wrong command line
)

func main() {
	if err := start(); err != nil {
		fmt.Fprintln(os.Stderr, "robustness:", err)
		os.Exit(code(err))
	}
}

func code(err error) int {
	if errors.Is(err, errUsage) {
		return exitUsage
	}
	if found, ok := errors.AsType[*run.FoundError](err); ok && found.Safe() && !errors.Is(err, run.ErrUnchecked) {
		return exitSlow
	}
	return exitFound
}

var errUsage = errors.New(usage)

func start() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if len(os.Args) < 2 {
		return errUsage
	}
	args := os.Args[2:]
	switch os.Args[1] {
	case "run":
		return runOne(ctx, args)
	case "faults":
		return listFaults()
	case "client": // started by a run
		return client.Run(ctx, os.Stdin, os.Stdout)
	}
	return errUsage
}

func runOne(ctx context.Context, args []string) error {
	o := run.Options{Out: os.Stdout}
	flags := flag.NewFlagSet("run", flag.ContinueOnError)
	flags.DurationVar(&o.For, "for", 10*time.Minute, "rounds begin until it is over")
	flags.DurationVar(&o.Round, "round", 0, "how long the clients work in each (default 45s)")
	flags.Uint64Var(&o.Seed, "seed", rand.Uint64(), "the faults and the clients' choices follow from it")
	flags.BoolVar(&o.Async, "async", false, "commits do not wait for the standby; what a failover loses is excused and counted")
	flags.IntVar(&o.Redis, "redis", 0, "nodes: 1, 3 or 5 (default 3)")
	flags.BoolVar(&o.Balancer, "balancer", false, "HAProxy stands in front of the gateways")
	lock := flags.String("lock", "redis", "what grants the leases: redis, or postgres, without Redis")
	flags.IntVar(&o.Gateways, "gateways", 0, "2 or 3 (default 3)")
	flags.IntVar(&o.Clients, "clients", 0, "client processes (default 12)")
	flags.StringVar(&o.Keep, "keep", "", "folder that the evidence goes to where something was found (default: a new one in the folder for temporary files)")
	only := flags.String("only", "", "surfaces, with commas between (default: all)")
	faults := flags.String("faults", "", "faults, with commas between; net is each that begins with net- (default: all)")
	blobs := flags.String("blobs", "dir", "what keeps the gateways' blobs: dir or s3")
	flags.BoolVar(&o.Soak, "soak", false, "no faults; one gateway is restarted each minute, and what must stay flat is measured")
	mutant := flags.String("mutant", "", "a bug of internal/mutants, which is seeded: it must be found in its time")
	sound := flags.Bool("sound", false, "the run of that mutant without its bug, for a minute: nothing may be found")
	quick := flags.Bool("quick", false, "two short rounds: for continuous integration")
	if err := flags.Parse(args); err != nil {
		return errUsage
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("what is %q?\n%w", flags.Arg(0), errUsage)
	}
	switch *blobs {
	case "dir":
	case "s3":
		o.BlobS3 = true
	default:
		return fmt.Errorf("-blobs is dir or s3, not %q\n%w", *blobs, errUsage)
	}
	switch *lock {
	case "redis":
	case "postgres":
		o.PostgresLeases = true
	default:
		return fmt.Errorf("-lock is redis or postgres, not %q\n%w", *lock, errUsage)
	}
	switch {
	case !slices.Contains([]int{0, 1, 3, 5}, o.Redis):
		return fmt.Errorf("-redis is 1, 3 or 5, not %d\n%w", o.Redis, errUsage)
	case o.Redis != 0 && o.PostgresLeases:
		return fmt.Errorf("-lock postgres has no -redis\n%w", errUsage)
	case *mutant != "":
		var given []string
		flags.Visit(func(f *flag.Flag) {
			if !slices.Contains([]string{"mutant", "sound", "seed", "async", "blobs", "gateways", "keep"}, f.Name) {
				given = append(given, "-"+f.Name)
			}
		})
		if len(given) > 0 {
			return fmt.Errorf("a -mutant has its own %s\n%w", strings.Join(given, ", "), errUsage)
		}
	}
	o.Surfaces, o.Faults = list(*only), list(*faults)
	if *quick {
		o.For, o.Round, o.Clients = 40*time.Second, 30*time.Second, 8
	}
	if err := place(&o); err != nil {
		return err
	}
	if *mutant != "" {
		return runMutant(ctx, o, *mutant, *sound)
	}
	result, err := run.Run(ctx, o)
	fmt.Print(result.Summary())
	return err
}

// place finds the repository, and a folder for the evidence.
func place(o *run.Options) error {
	wd, err := os.Getwd()
	if err != nil {
		return err
	}
	if o.Root = filepath.Dir(wd); filepath.Base(wd) != "robustness" {
		return errors.New("run it in the folder robustness of the repository")
	}
	if o.Keep == "" {
		o.Keep = filepath.Join(os.TempDir(), "fencegate-robustness-found")
	}
	return nil
}

func list(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(text, ",")
}
