// Command golden plays scenarios to a running fencegate and compares its answers with the committed transcripts.
//
// The guarantee: what a client sees of the S3 port, the HTTP API, the PostgreSQL port and the command line (status,
// headers, bodies, messages, help) equals the transcripts, except for values that differ between runs. Those are
// masked; equal values keep equal names. The transcripts also cover rights: those of PostgreSQL's roles, and the S3
// operations by principal.
//
// scenarios/NAME.txt has the requests, and transcripts/NAME.txt the requests with their answers. To add a case, add a
// line to a scenario, run make golden-record, and read the diff. README.md describes the steps.
//
// It builds ./cmd/fencegate and runs `fencegate serve` on a private PostgreSQL and Redis. If an answer differs, it
// prints a unified diff, in which each change is headed by its step, and exits with 1; -record rewrites the files.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"
)

const folder = "conformance/golden"

func main() {
	record := flag.Bool("record", false, "take what is answered now for what is expected from now on")
	only := flag.String("only", "", "play the scenarios whose names begin with this")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	differ, err := run(ctx, *only, *record)
	cancel()
	stop()
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "golden:", err)
		os.Exit(1)
	case differ > 0:
		fmt.Fprintf(os.Stderr, "golden: %d transcripts differ; where that is meant, make golden-record\n", differ)
		os.Exit(1)
	}
}

func run(ctx context.Context, only string, record bool) (differ int, err error) {
	shared, list, err := load(folder, only)
	if err := errors.Join(err, orphans(folder)); err != nil {
		return 0, err
	}
	w, err := start(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	var failed error
	for _, s := range list {
		began := time.Now()
		t, err := play(ctx, w, shared, s.steps)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%w\n%s", err, strings.Join(t.lines[max(0, len(t.lines)-12):], "")))
			continue
		}
		path, diff := filepath.Join(folder, "transcripts", s.name+".txt"), ""
		if record {
			err = os.WriteFile(path, []byte(t.String()), 0o644) //nolint:gosec // for everybody to read
		} else {
			diff, err = t.compare(path)
		}
		if err != nil {
			return differ, err
		}
		if diff != "" {
			differ++
			fmt.Print(diff)
		}
		fmt.Fprintf(os.Stderr, "golden: %-20s %5d lines %6d ms\n", s.name, len(t.lines), time.Since(began).Milliseconds())
	}
	return differ, failed
}
