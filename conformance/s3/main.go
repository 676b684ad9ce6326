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
	"time"

	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/internal/s3stack"
)

func main() {
	checkout := flag.String("suite", "", "folder of a checkout of s3-tests; without it the clients run")
	python := flag.String("python", "/usr/bin/python3", "what runs s3-tests")
	log := flag.String("log", filepath.Join(os.TempDir(), "s3tests.log"), "file for the output of s3-tests")
	only := flag.String("k", "", "run a part of s3-tests, as pytest's -k does")
	update := flag.Bool("update", false, "take how each test ends for what is expected from now on")
	all := flag.Bool("all", false, "fail where a client is missing")
	withRun := flag.Bool("tools", false, "run the tools under fencegate run, and nothing else")
	client := flag.String("client", "", "be this client in Go, on the server that the environment names")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	ctx, cancel := context.WithTimeout(ctx, 40*time.Minute)
	var wrong int
	var err error
	switch {
	case *client == "upload":
		err = upload(ctx)
	case *client != "":
		err = runGoClient(ctx, *client)
	case *withRun:
		wrong, err = runTools(ctx, *all)
	case *checkout == "":
		wrong, err = runClientsAndLate(ctx, *all)
	default:
		wrong, err = runSuite(ctx, suite{python: *python, checkout: *checkout, log: *log, only: *only}, *update)
	}
	cancel()
	stop()
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "conformance-s3:", err)
		os.Exit(1)
	case wrong > 0:
		fmt.Fprintf(os.Stderr, "conformance-s3: %d outcomes are not as they should be\n", wrong)
		os.Exit(1)
	}
}

func runClientsAndLate(ctx context.Context, all bool) (wrong int, err error) {
	wrong, err = runClients(ctx, all)
	if err != nil {
		return wrong, err
	}
	late, err := runLate(ctx, all)
	if err != nil {
		return wrong + late, err
	}
	n, err := runTools(ctx, all)
	return wrong + late + n, err
}

const expectedFile = "expected.txt"

func runSuite(ctx context.Context, s suite, update bool) (lost int, err error) {
	w, err := start(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	found, err := s.run(ctx, w)
	if err != nil {
		return 0, err
	}
	found.print()
	return found.compare(expectedFile, s.only != "", update)
}

// world is a fenced PostgreSQL, and the S3 servers on it.
type world struct {
	db      *s3stack.Database
	servers int
}

func start(ctx context.Context) (*world, error) {
	db, err := s3stack.StartDatabase(ctx, s3stack.DatabaseConfig{Fast: true})
	return &world{db: db}, err
}

func (w *world) close() error { return w.db.Close() }

// server starts a server. Buckets that are created over S3 get the rule.
func (w *world) server(ctx context.Context, rule objects.Rule) (*s3stack.Server, error) {
	w.servers++
	return s3stack.StartServer(ctx, s3stack.ServerConfig{
		PostgresURL: w.db.URL(), Blobs: filepath.Join(w.db.Dir, "blobs"+strconv.Itoa(w.servers)), Rule: rule,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
	})
}
