// Command golden plays a fixed sequence of requests to a running
// fencegate and compares the answers with the committed ones.
//
// The guarantee: what a client sees of the S3 port, the HTTP API, the PostgreSQL port and the command line (status,
// headers, bodies, messages, help) equals the transcripts, except for values that differ between runs. Those are
// masked; equal values keep equal names. The transcripts also cover rights: those of PostgreSQL's roles, and the S3
// operations by principal.
//
// It builds ./cmd/fencegate and runs `fencegate serve` on a private PostgreSQL and Redis. It prints a unified diff and
// exits with 1 if something differs; -record rewrites the files.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"time"
)

// chapters are the files, in the order in which they are played. Each creates its own buckets, resources and tables, so
// that it can be played alone.
var chapters = []struct {
	name string
	play func(context.Context, *world, *book) error
}{
	{"cli", playHelp},
	{"rights-postgresql", playRights},
	{"http-leases", playLeases},
	{"http-resources", playResources},
	{"http-buckets", playBuckets},
	{"http-sql", playSQL},
	{"http-requests", playRequests},
	{"s3-objects", playObjects},
	{"s3-reads", playReads},
	{"s3-copies", playCopies},
	{"s3-deletions", playDeletions},
	{"s3-lists", playLists},
	{"s3-multipart", playMultipart},
	{"s3-versions", playVersions},
	{"s3-fence", playFence},
	{"s3-stages", playStages},
	{"s3-authentication", playAuthentication},
	{"s3-bodies", playBodies},
	{"s3-documents", playDocuments},
	{"s3-edge", playEdge},
	{"s3-unsupported", playUnsupported},
	{"s3-subresources", playSubresources},
	{"s3-principals", playPrincipals},
	{"pg-login", playLogin},
	{"pg-grants", playGrants},
	{"pg-policies", playPolicies},
	{"pg-messages", playMessages},
	{"pg-ends", playEnds},
	{"http-metrics", playMetrics},
}

const folder = "conformance/golden/transcripts"

func main() {
	record := flag.Bool("record", false, "take what is answered now for what is expected from now on")
	only := flag.String("only", "", "play the chapters whose names begin with this")
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
	w, err := start(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	var failed error
	for _, c := range chapters {
		if !strings.HasPrefix(c.name, only) {
			continue
		}
		began := time.Now()
		b := newBook(w)
		if err := c.play(ctx, w, b); err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w\n%s", c.name, err, b.tail()))
			continue
		}
		same, err := settle(filepath.Join(folder, c.name+".txt"), b.text(), record)
		if err != nil {
			return differ, err
		}
		if !same {
			differ++
		}
		fmt.Fprintf(os.Stderr, "golden: %-20s %5d lines %6d ms\n", c.name, strings.Count(b.text(), "\n"), time.Since(began).Milliseconds())
	}
	return differ, failed
}

// settle compares the text with the file, or writes it.
func settle(path, text string, record bool) (same bool, err error) {
	if record {
		return true, os.WriteFile(path, []byte(text), 0o644) //nolint:gosec // for everybody to read
	}
	was, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return false, err
	}
	if string(was) == text {
		return true, nil
	}
	cmd := exec.Command("diff", "-u", "--label", path, "--label", path+" (now)", "-", "/dev/fd/3")
	now, in, err := os.Pipe()
	if err != nil {
		return false, err
	}
	go func() {
		_, _ = in.WriteString(text)
		_ = in.Close()
	}()
	cmd.Stdin, cmd.ExtraFiles, cmd.Stdout, cmd.Stderr = strings.NewReader(string(was)), []*os.File{now}, os.Stdout, os.Stderr
	err = cmd.Run()
	if _, differs := errors.AsType[*exec.ExitError](err); differs {
		err = nil
	}
	return false, errors.Join(err, now.Close())
}
