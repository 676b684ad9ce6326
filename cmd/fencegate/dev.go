//go:build !noembedded

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/fencegate/fencegate/internal/runner"
	"github.com/fencegate/fencegate/internal/stack"
	"github.com/fencegate/fencegate/internal/terminal"
)

func newDev(e env) *cobra.Command {
	var cfg stack.DevConfig
	var buckets []string
	var lock string
	cmd := &cobra.Command{
		Use:   "dev [flags] [-- COMMAND [ARG…]]",
		Short: "Run everything in one process, with no set-up",
		Long: `Run everything in one process: three embedded Redis nodes, a private PostgreSQL, a folder
for blobs, and the gateway, all on loopback. With --lock postgres there is no Redis. State
survives restarts; Ctrl-C stops everything.

PostgreSQL comes from --postgres-url, else from the binaries on this machine. Not for
production: see "fencegate serve".

With a COMMAND it runs the command while everything is up, then stops with the command's exit code.
The command finds FENCEGATE_GATEWAY, FENCEGATE_REDIS, FENCEGATE_REDIS_PREFIX,
FENCEGATE_REDIS_PASSWORD, DATABASE_URL (the database's owner), ARMING_DATABASE_URL (may arm
fences), and PGUSER, PGPASSWORD and PGDATABASE in its environment.`,
		Example: `  fencegate dev
  fencegate dev --ephemeral -- go test ./...`,
		Annotations: map[string]string{handlesSignals: ""},
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if cfg.Buckets, err = parseBuckets(splitAll(buckets)); err != nil {
				return err
			}
			if len(args) > 0 && cmd.ArgsLenAtDash() != 0 {
				return usage(fmt.Errorf("unexpected argument %q; a command comes after --", args[0]))
			}
			if cfg.PostgresLeases, err = fromPostgres(lock); err != nil {
				return err
			}
			var shared terminal.Shared
			ctx, _, stop := untilSignal(cmd.Context(), cmd.InOrStdin(), &shared)
			defer stop()
			return endedBy(ctx, runDev(ctx, cmd, cfg, args, &shared))
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.Dir, "data", "", "folder for all state (default: the user's data directory)")
	f.BoolVar(&cfg.Ephemeral, "ephemeral", false, "keep nothing: use a temporary folder and remove it at the end")
	f.StringVar(&cfg.PostgresURL, "postgres-url", "", "a PostgreSQL to use instead of a private one, as superuser (better in FENCEGATE_POSTGRES_URL); its database is fencegate_dev, with --ephemeral a new one")
	f.StringVar(&lock, "lock", lockRedis, lockUsage)
	f.StringVar(&cfg.APIListen, "api-listen", "127.0.0.1:7070", "address of the HTTP API")
	f.StringVar(&cfg.PGListen, "pg-listen", "127.0.0.1:7432", "address of the PostgreSQL port")
	f.StringVar(&cfg.S3Listen, "s3-listen", "127.0.0.1:7480", "address of the S3 port")
	f.StringArrayVar(&buckets, "bucket", []string{"orders=prefix:1", "reports=key"}, "bucket and rule, made if missing: NAME=bucket, NAME=prefix:N or NAME=key")
	return cmd
}

func runDev(ctx context.Context, cmd *cobra.Command, cfg stack.DevConfig, command []string, shared *terminal.Shared) (err error) {
	stderr := cmd.ErrOrStderr()
	cfg.Progress = func(line string) { _, _ = fmt.Fprintln(stderr, "fencegate dev:", line) }
	cfg.Version = version()
	cfg.Logger = slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn, ReplaceAttr: readable}))
	if len(command) > 0 {
		cfg.Progress = nil
	}
	if err := portsFree(cfg); err != nil {
		return err
	}
	if len(command) > 0 {
		if _, err := exec.LookPath(command[0]); err != nil {
			return usage(fmt.Errorf("the command: %w", err))
		}
	}
	dev, err := stack.StartDev(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	if len(command) > 0 {
		return runBeside(ctx, cmd, shared, dev, command)
	}
	printStack(cmd.OutOrStdout(), dev)
	err = dev.Wait(ctx)
	cfg.Progress("stopping")
	if ctx.Err() != nil {
		return nil // Ctrl-C is the regular end of dev
	}
	return err
}

// commandStopTimeout is how long the command may take to exit after SIGTERM.
const commandStopTimeout = 10 * time.Second

// runBeside runs a command beside the running stack.
func runBeside(ctx context.Context, cmd *cobra.Command, shared *terminal.Shared, dev *stack.Dev, command []string) error {
	c := exec.CommandContext(ctx, command[0], command[1:]...)
	c.Env = append(os.Environ(), dev.Environ()...)
	c.Stdin, c.Stdout, c.Stderr = cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
	c.WaitDelay = commandStopTimeout
	if err := shared.Start(c); err != nil {
		return fmt.Errorf("run %s: %w", command[0], err)
	}
	_ = c.Wait() // the process's state says how it ended
	if !c.ProcessState.Success() {
		return &childExit{code: runner.ExitCode(&exec.ExitError{ProcessState: c.ProcessState})}
	}
	return nil
}

// portsFree checks that all addresses are free at the same time, before the long steps.
func portsFree(cfg stack.DevConfig) error {
	for _, port := range []struct{ flag, address string }{{"api-listen", cfg.APIListen}, {"pg-listen", cfg.PGListen}, {"s3-listen", cfg.S3Listen}} {
		ln, err := net.Listen("tcp", port.address)
		if err != nil {
			return withHint(fmt.Errorf("--%s: %w", port.flag, err), exitUsage, "name another address with --"+port.flag+", such as 127.0.0.1:0 for any free port")
		}
		defer func() { _ = ln.Close() }()
	}
	return nil
}

func printStack(w io.Writer, s *stack.Dev) {
	a := s.Addrs()
	database, user, password := s.Login()
	_, _ = fmt.Fprintf(w, `fencegate is running.

  HTTP API    http://%s
  PostgreSQL  postgres://%s:%s@%s/%s
  S3          http://%s
  database    %s
  state       %s

Try, in another terminal:

  fencegate demo --watch
  psql postgres://%s:%s@%s/%s -c "CREATE TABLE orders (id int, status text)" -c "SELECT fence.protect('orders', under => 'orders/')"
  PGUSER=%s PGPASSWORD=%s fencegate run --gateway http://%s --resource orders/1001 -- psql -c "INSERT INTO orders VALUES (1001, 'new')"
`,
		a.API, user, password, a.PG, database, a.S3, s.PostgreSQL(), s.Dir,
		user, password, a.PG, database, user, password, a.API)
}

// startDemoStack starts a stack of demo's own, which keeps nothing.
func startDemoStack(ctx context.Context, postgres bool, progress func(line string)) (*stack.Dev, error) {
	return stack.StartDev(ctx, stack.DevConfig{Ephemeral: true, PostgresLeases: postgres, Progress: progress})
}
