package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/runner"
)

func newRun(e env) *cobra.Command {
	var g gatewayFlags
	var o struct {
		resource, holder, onLost, kind string
		ttl, wait                      time.Duration
		access                         runner.S3Access
		pgURLs                         []string
	}
	cmd := &cobra.Command{
		Use:   "run --resource RESOURCE [flags] -- COMMAND [ARG…]",
		Short: "Run a command under a lease; its writes are refused once the lease is over",
		Long: `Run a command under a lease. The command finds in its environment

  FENCE_RESOURCE, FENCE_TOKEN                   the grant, for any client
  FENCE_NONCE                                   a nonce of this run, for fence.lease=…;once=$FENCE_NONCE
  PGHOST, PGPORT, PGOPTIONS                     psql and every libpq driver write through the gateway
  JDBC_URL                                      the same for JDBC, which reads none of these
  AWS_CONTAINER_CREDENTIALS_FULL_URI,           the S3 tools and SDKs upload through the gateway,
  AWS_CONTAINER_AUTHORIZATION_TOKEN,            with credentials that they refresh as the lease
  AWS_REGION, AWS_ENDPOINT_URL_S3               is renewed

Drivers that ignore PGOPTIONS (asyncpg, pgx before 5.7.5) take it from a URL: with
--pg-url-env DATABASE_URL that variable leads through the gateway too, with the grant in it.
docs/frameworks.md lists drivers and versions.

With --s3-credentials=static it finds AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and
AWS_SESSION_TOKEN instead, for tools that read these only (curl, s3cmd). They write while the
lease is held. --s3-own-keys and --s3-read-only limit what the credentials are good for.

The lease is renewed while the command runs. When it cannot be renewed, the command is ended
(TERM, then KILL) before the lease can be another's; --on-lost=warn only warns. That holds
only while fencegate itself is scheduled; the fence in the storage covers the rest.

The exit code is the command's own; 79 where the lease was lost and the command was ended, or
not started.`,
		Example: `  fencegate run --resource reports/q3 --ttl 30s -- ./nightly-report.sh
  fencegate run --resource orders/1001 --wait 1m -- psql -c "UPDATE orders SET status = 'paid' WHERE id = 1001"`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("the command is missing; it comes after --")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			onLost, err := runner.ParseOnLost(o.onLost)
			if err != nil {
				return usage(err)
			}
			if o.access.Kind, err = runner.ParseKind(o.kind); err != nil {
				return usage(err)
			}
			c, err := g.client(e)
			if err != nil {
				return err
			}
			if o.ttl <= 0 {
				return &fence.InvalidError{Field: "ttl", Reason: "must be positive"}
			}
			signals := make(chan os.Signal, 2)
			defer signal.Stop(signals)
			listen(signals)
			result, err := runner.Run(cmd.Context(), runner.Config{
				Client: c,
				Acquire: client.AcquireRequest{
					Resource: o.resource, TTL: o.ttl, Wait: o.wait, Holder: o.holder,
				},
				Command: args,
				Environ: os.Environ(),
				OnLost:  onLost,
				S3:      o.access,
				PGURLs:  o.pgURLs,
				Signals: signals,
				Stdin:   cmd.InOrStdin(), Stdout: cmd.OutOrStdout(), Stderr: cmd.ErrOrStderr(),
				Say: func(format string, a ...any) {
					_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "fencegate run: "+format+"\n", a...)
				},
			})
			switch {
			case errors.Is(err, runner.ErrLate):
				return withHint(err, exitLost, "the command was not started; the gateway was slow to answer, and a longer --ttl leaves more time")
			case err != nil:
				return err
			case result.Ended:
				return withHint(fmt.Errorf("lost the lease on %q (token %d) and ended the command: %w", o.resource, result.Token, result.Lost), exitLost,
					"whatever it wrote after the lease was another's has been refused; check what it did before, then run it again")
			case result.ExitCode != 0:
				return &childExit{code: result.ExitCode}
			}
			return nil
		},
	}
	g.register(cmd)
	host, _ := os.Hostname()
	f := cmd.Flags()
	f.StringVar(&o.resource, "resource", "", "what the command works on, such as orders/1001 (required)")
	f.DurationVar(&o.ttl, "ttl", 30*time.Second, "how long the lease lasts unless renewed; it is renewed every third of it")
	f.DurationVar(&o.wait, "wait", 0, "how long to wait while another holds the resource")
	f.StringVar(&o.holder, "holder", fmt.Sprintf("%s/%d", host, os.Getpid()), "name shown to people who inspect the resource")
	f.StringVar(&o.onLost, "on-lost", "kill", "what to do when the lease is lost: kill or warn")
	f.StringArrayVar(&o.pgURLs, "pg-url-env", nil, "`NAME` of a variable with the database's URL, such as DATABASE_URL; may be repeated")
	f.StringVar(&o.kind, "s3-credentials", "refreshing", "S3 credentials of the command: refreshing or static")
	f.BoolVar(&o.access.OwnKeys, "s3-own-keys", false, "they read only keys of the resource")
	f.BoolVar(&o.access.ReadOnly, "s3-read-only", false, "they write nothing")
	return cmd
}

// listen has the signals sent that ask `run` to end. What it was started to ignore
// it goes on to ignore, and so does the command.
func listen(signals chan<- os.Signal) {
	signal.Notify(signals, endings...)
	// Whoever reads our messages may go away: to say something to nobody must not
	// end the process that watches the lease. Ignored, it would be so for the command too.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
}
