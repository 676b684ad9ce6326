// Command s3 measures the S3 port against versitygw's POSIX back end and MinIO, on the same disk, interleaved in one
// run, with the same client.
//
// Ours writes under a current lease: the fence is checked in each commit, blobs and their folders are synced, and
// PostgreSQL has fsync=on. versitygw's POSIX back end syncs nothing. MinIO, on one drive, opens its files with O_DSYNC
// or syncs them, and renames.
//
// It prints one line for each goal. With -strict it exits with 1 if a goal is missed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"time"
)

// plan holds the flags.
type plan struct {
	parts   []string
	only    []string // contenders; empty: all
	clients []int
	sizes   []int64
	slice   time.Duration
	rounds  int
	keys    int
	data    string
	minio   string
	socket  bool
}

func main() {
	var p plan
	parts := flag.String("part", "memory,put,get,list", "what to measure; memory first, while the servers are fresh; writes: what each kind of write costs PostgreSQL")
	only := flag.String("only", "", "contenders to measure; default: all")
	clients := flag.String("clients", "1,16,64", "numbers of connections")
	sizes := flag.String("sizes", "4KiB,1MiB,256MiB", "sizes of objects; more than 16 MiB are measured with one connection")
	flag.DurationVar(&p.slice, "slice", time.Second, "how long one contender runs before the next one")
	flag.IntVar(&p.rounds, "rounds", 5, "how often each contender has its slice")
	flag.IntVar(&p.keys, "keys", 1_000_000, "how many keys the second list is a page of; the first is of 100,000")
	flag.StringVar(&p.data, "data", "", "folder below which all files are made; default: the system's temporary folder")
	flag.StringVar(&p.minio, "minio", "", "MinIO's program; default: from the PATH, else MinIO is left out")
	flag.BoolVar(&p.socket, "socket", false, "ours reaches PostgreSQL by a Unix socket, instead of TCP on loopback")
	quick := flag.Bool("quick", false, "few rounds, small lists: to see that it runs")
	strict := flag.Bool("strict", false, "exit with 1 when a goal is missed")
	profile := flag.String("profile", "", "folder into which ours and versitygw write profiles of their processor time")
	serve := flag.String("serve", "", "be this server, as the environment says")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	if *serve != "" {
		stop()
		fail(serveAs(*serve))
		return
	}
	if *quick {
		p.slice, p.rounds, p.keys = 300*time.Millisecond, 3, 20_000
		*clients, *sizes = "1,16", "4KiB,1MiB"
	}
	if *profile != "" {
		fail(os.Setenv(envProfile, *profile))
	}
	p.parts = strings.Split(*parts, ",")
	if *only != "" {
		p.only = strings.Split(*only, ",")
	}
	for text := range strings.SplitSeq(*clients, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			fail(fmt.Errorf("-clients: %q is no positive number", text))
		}
		p.clients = append(p.clients, n)
	}
	for text := range strings.SplitSeq(*sizes, ",") {
		size, err := parseSize(text)
		fail(err)
		p.sizes = append(p.sizes, size)
	}
	met, err := p.run(ctx)
	stop()
	fail(err)
	if !met && *strict {
		os.Exit(1)
	}
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-s3:", err)
		os.Exit(1)
	}
}

// parseSize parses sizes such as "4KiB".
func parseSize(text string) (int64, error) {
	for unit, bytes := range map[string]int64{"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30} {
		if number, has := strings.CutSuffix(text, unit); has {
			n, err := strconv.ParseInt(number, 10, 64)
			return n * bytes, err
		}
	}
	return 0, fmt.Errorf("size %q does not end in KiB, MiB or GiB", text)
}

func showSize(size int64) string {
	switch {
	case size >= 1<<30:
		return fmt.Sprintf("%dGiB", size>>30)
	case size >= 1<<20:
		return fmt.Sprintf("%dMiB", size>>20)
	}
	return fmt.Sprintf("%dKiB", size>>10)
}

func (p plan) run(ctx context.Context) (met bool, err error) {
	w, err := start(ctx, p)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	parts := map[string]func(context.Context, *world) ([]goal, error){"put": p.putPart, "get": p.getPart, "memory": p.memoryPart, "list": p.listPart, "writes": p.writesPart}
	var goals []goal
	for _, part := range p.parts {
		measure, known := parts[part]
		if !known {
			return false, fmt.Errorf("there is no part %q", part)
		}
		got, err := measure(ctx, w)
		if err != nil {
			return false, fmt.Errorf("%s: %w", part, err)
		}
		goals = append(goals, got...)
	}
	for _, g := range goals {
		fmt.Println(g)
	}
	return !slices.ContainsFunc(goals, func(g goal) bool { return !g.met() }), nil
}
