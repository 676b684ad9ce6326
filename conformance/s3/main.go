// Command s3 lets clients without support for fencegate use the S3 port, each with the credentials of a current lease,
// of a superseded one and of none, and runs Ceph's s3-tests against the port.
//
// It prints tables, and exits with 1 if a client gets an unexpected result, or if a test of s3-tests no longer passes.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/internal/stack"
)

func main() {
	var s suite
	flag.StringVar(&s.checkout, "suite", "", "folder of a checkout of s3-tests; without it the clients run")
	flag.StringVar(&s.python, "python", "/usr/bin/python3", "what runs s3-tests")
	flag.StringVar(&s.log, "log", filepath.Join(os.TempDir(), "s3tests.log"), "file for the output of s3-tests")
	flag.StringVar(&s.only, "k", "", "run a part of s3-tests, as pytest's -k does")
	update := flag.Bool("update", false, "take how each test ends for what is expected from now on")
	all := flag.Bool("all", false, "fail where a client is missing")
	withRun := flag.Bool("tools", false, "run the tools under fencegate run, and nothing else")
	uploading := flag.Bool("upload", false, "be a tool: upload what the environment names")
	flag.Parse()
	if !*uploading { // that has the environment of its run
		clearAWS()
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	ctx, cancel := context.WithTimeout(ctx, 40*time.Minute)
	var wrong int
	var err error
	parts := []func(context.Context, bool) (int, error){runClients, runLate, runTools}
	switch {
	case flag.NArg() > 0:
		parts, err = nil, fmt.Errorf("%q is no flag", flag.Arg(0))
	case s.checkout == "" && (s.only != "" || *update):
		parts, err = nil, errors.New("-k and -update are for -suite")
	case *uploading:
		parts, err = nil, upload(ctx)
	case *withRun:
		parts = parts[2:]
	case s.checkout != "":
		parts = nil
		wrong, err = s.compare(ctx, *update)
	}
	for _, part := range parts {
		if err == nil {
			var n int
			n, err = part(ctx, *all)
			wrong += n
		}
	}
	cancel()
	stop()
	if err == nil && wrong > 0 {
		err = fmt.Errorf("%d outcomes are not as they should be", wrong)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "conformance-s3:", err)
		os.Exit(1)
	}
}

// clearAWS removes the user's settings of AWS from the environment.
func clearAWS() {
	for _, kv := range os.Environ() {
		if name, _, _ := strings.Cut(kv, "="); strings.HasPrefix(name, "AWS_") {
			_ = os.Unsetenv(name) // it is there
		}
	}
}

// world is a fenced PostgreSQL, and the S3 servers on it.
type world struct {
	*stack.Stack

	pg      *stack.Postgres
	servers int
}

func start(ctx context.Context) (*world, error) {
	s, err := stack.New("")
	if err != nil {
		return nil, err
	}
	pg, err := s.Postgres(ctx, stack.PostgresConfig{})
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return &world{Stack: s, pg: pg}, nil
}

// server starts a server. Buckets that are created over S3 get the rule.
func (w *world) server(ctx context.Context, rule objects.Rule) (*stack.S3, error) {
	w.servers++
	srv, err := stack.StartS3(ctx, stack.S3Config{
		URL: w.pg.Admin(), Blobs: filepath.Join(w.Dir, "blobs"+strconv.Itoa(w.servers)), Rule: rule,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
	})
	if err == nil {
		w.AtClose(srv.Close)
	}
	return srv, err
}
