package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/pgtext"
	"github.com/fencegate/fencegate/internal/runner"
	"github.com/fencegate/fencegate/internal/terminal"
	"github.com/fencegate/fencegate/wire"
)

// runFlags are the flags of `run` besides the gateway's.
type runFlags struct {
	onLost, onHeld, kind string
	resources            []string
	lease                client.AcquireRequest
	access               runner.S3Access
	pgURLs               []string
	forever, json        bool
	reported             bool           // report the outcome as JSON
	own                  *pflag.FlagSet // the flags of these options
}

func newRun(e env) *cobra.Command {
	var g gatewayFlags
	var o runFlags
	cmd := &cobra.Command{
		Use:         "run --resource RESOURCE… [flags] [--] COMMAND [ARG…]",
		Short:       "Run a command under a lease; its writes are refused once the lease is over",
		Long:        runLong,
		Example:     runExample,
		Annotations: map[string]string{says: "", handlesSignals: "", queuesMessages: ""},
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("the command is missing; it comes after the flags")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			err := o.run(cmd, e, &g, args)
			if !o.json || err == nil {
				return err
			}
			if !o.reported {
				o.report(cmd.ErrOrStderr(), runner.Result{}, err)
			}
			return &printedError{err}
		},
	}
	g.register(cmd)
	o.register(cmd)
	return cmd
}

// processOf runs the command, and returns the error to report.
func (o *runFlags) run(cmd *cobra.Command, e env, g *gatewayFlags, args []string) error {
	catchSIGPIPE() // the reader of our messages may close its end
	cfg, err := o.config(cmd)
	if err != nil {
		return err
	}
	cfg.Stderr = e.stderr // the command's own messages wait for their reader, as without run
	if cfg.Client, err = g.client(cmd.Context(), e); err != nil {
		return err
	}
	cfg.Command = args
	for _, warning := range e.misspelt(cmd.Root()) {
		cfg.Say("warning: %s", oneLine(warning))
	}
	if !o.forever { // which would start the command again that a typed INT has ended
		cfg.Shared = new(terminal.Shared)
	}
	ctx, heard, stop := untilSignal(cmd.Context(), cfg.Stdin, cfg.Shared)
	defer stop()
	cfg.Signals = heard
	if o.forever {
		return o.again(ctx, cfg, cmd.ErrOrStderr())
	}
	return o.once(ctx, cfg, cmd.ErrOrStderr())
}

func (o *runFlags) register(cmd *cobra.Command) {
	host, _ := os.Hostname()
	cmd.Flags().SetInterspersed(false) // the flags after the command's name are the command's
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	f.StringArrayVar(&o.resources, "resource", nil, "`RESOURCE` that the command works on, such as orders/1001 (required); may be repeated: all are held, or none")
	f.DurationVar(&o.lease.TTL, "ttl", 30*time.Second, "how long the lease lasts unless renewed; it is renewed every third of it")
	f.DurationVar(&o.lease.Wait, "wait", 0, "how long to wait while another holds the resource, or the gateway is away")
	f.StringVar(&o.onHeld, "on-held", "fail", "what to do when another holds the resource after --wait: fail (exit code 75), skip (0), or wait without end")
	f.BoolVar(&o.forever, "forever", false, "acquire and run again whenever the command ends or its lease is lost, until stopped")
	f.BoolVar(&o.json, "json", false, "write messages and the outcome as JSON, a line each, to standard error")
	f.StringVar(&o.lease.Holder, "holder", fmt.Sprintf("%s/%d", host, os.Getpid()), "name shown to people who inspect the resource")
	f.StringVar(&o.onLost, "on-lost", "kill", "what to do when the lease is lost: kill or warn")
	f.StringArrayVar(&o.pgURLs, "pg-url-env", nil, "`NAME` of a variable with the database's URL, such as DATABASE_URL; may be repeated")
	f.StringVar(&o.kind, "s3-credentials", "refreshing", "S3 credentials of the command: refreshing or static")
	f.StringVar(&o.access.Resource, "s3-resource", "", "the `RESOURCE` among several whose lease the S3 credentials are of")
	f.BoolVar(&o.access.OwnKeys, "s3-own-keys", false, "they read only keys of the resource")
	f.BoolVar(&o.access.ReadOnly, "s3-read-only", false, "they write nothing")
	o.own = f
	cmd.Flags().AddFlagSet(f)
}

// inherited returns the variables that the command inherits: all but those of run's own options, which would apply to a
// fencegate command in it. An inner `lease acquire` would wait as this run did, in its name.
func (o *runFlags) inherited(environ []string) []string {
	own := map[string]bool{}
	o.own.VisitAll(func(f *pflag.Flag) { own[envName(f.Name)] = true })
	return slices.DeleteFunc(environ, func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		return own[name]
	})
}

func (o *runFlags) config(cmd *cobra.Command) (cfg runner.Config, err error) {
	if cfg.OnLost, err = runner.ParseOnLost(o.onLost); err != nil {
		return cfg, usage(err)
	}
	if cfg.OnHeld, err = runner.ParseOnHeld(o.onHeld); err != nil {
		return cfg, usage(err)
	}
	if o.access.Kind, err = runner.ParseKind(o.kind); err != nil {
		return cfg, usage(err)
	}
	if err := o.distinct(); err != nil {
		return cfg, err
	}
	given := cmd.Flags().Changed
	o.access.Required = slices.ContainsFunc([]string{"s3-credentials", "s3-resource", "s3-own-keys", "s3-read-only"}, given)
	switch {
	case given("s3-resource") && !slices.Contains(o.resources, o.access.Resource):
		return cfg, &fence.InvalidError{Field: "s3-resource", Reason: fmt.Sprintf("is %q, which is none of the resources that --resource names", o.access.Resource)}
	case len(o.resources) > 1 && !given("s3-resource") && (given("s3-credentials") || given("s3-own-keys") || given("s3-read-only")):
		return cfg, usage(errors.New("S3 credentials are of one resource, and there are several; name it with --s3-resource, or leave the --s3-… flags out"))
	case o.lease.TTL < leasing.MinTTL:
		return cfg, &fence.InvalidError{Field: "ttl", Reason: fmt.Sprintf("is %v; at least %v is needed: the command is ended %v before its lease", o.lease.TTL, leasing.MinTTL, runner.KillMargin)}
	case o.lease.Wait < 0:
		return cfg, &fence.InvalidError{Field: "wait", Reason: "is negative"}
	case given("wait") && cfg.OnHeld == runner.Wait:
		return cfg, usage(errors.New("--on-held=wait waits without limit; use --wait D or --on-held=wait, not both"))
	case o.forever && (given("wait") || given("on-held")):
		return cfg, usage(errors.New("--forever waits without limit for the resource; omit --wait and --on-held"))
	case o.forever:
		cfg.OnHeld = runner.Wait
	}
	stderr := cmd.ErrOrStderr()
	cfg.Acquire, cfg.Resources, cfg.Environ, cfg.S3, cfg.PGURLs = o.lease, o.resources, o.inherited(os.Environ()), o.access, o.pgURLs
	if err := addressable(cfg.Environ, o.pgURLs); err != nil {
		return cfg, err
	}
	cfg.Stdin, cfg.Stdout = cmd.InOrStdin(), cmd.OutOrStdout()
	message := runMessage
	if o.json {
		message = func(text string) []byte { return o.line(map[string]any{"message": text}) }
	}
	if queue, ok := stderr.(*messageQueue); ok {
		queue.format(message)
	}
	cfg.Say = func(format string, a ...any) { _, _ = stderr.Write(message(fmt.Sprintf(format, a...))) }
	return cfg, nil
}

// variableName matches the names of variables, and no URL.
var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]*$`)

// addressable refuses variables whose addresses the run could not lead through the gateway, before it acquires anything.
func addressable(environ, names []string) error {
	for _, name := range names {
		if !variableName.MatchString(name) { // it may be the URL itself, with a password
			return &fence.InvalidError{Field: "pg-url-env", Reason: "must be the name of a variable, such as DATABASE_URL"}
		}
	}
	_, err := runner.PostgresEnviron(environ, names, client.Lease{}, wire.PostgresEndpoint{}) // for its error alone
	return err
}

const (
	// maxRunResources bounds the leases of one run: each is renewed by its own request.
	maxRunResources = 64
	// maxGrantsBytes bounds all grants of a run in a connection's options. PostgreSQL refuses a startup packet of more
	// than 10,000 bytes, which also holds other settings.
	maxGrantsBytes = 8000
	// grantBytes is the most that one grant takes besides its name: "=", a token, ".", a seal and ",".
	grantBytes = 1 + 19 + 1 + 32 + 1
)

// distinct refuses resources that can't be held together, before anything is acquired.
func (o *runFlags) distinct() error {
	if n := len(o.resources); n > maxRunResources {
		return &fence.InvalidError{Field: "resource", Reason: fmt.Sprintf("is given %d times; at most %d are held together", n, maxRunResources)}
	}
	if len(o.resources) == 0 {
		return usage(errors.New("--resource is missing: name what the command works on, such as --resource orders/1001"))
	}
	o.lease.Resource = o.resources[0]
	size, seen := 0, map[string]bool{}
	for _, name := range o.resources {
		if err := fence.ValidateResource(name); err != nil {
			return err
		}
		if seen[name] {
			return &fence.InvalidError{Field: "resource", Reason: fmt.Sprintf("is %q twice; name each once", name)}
		}
		seen[name] = true
		size += len(fence.EscapeResource(name)) + grantBytes
	}
	if len(o.resources) > 1 && size > maxGrantsBytes {
		return &fence.InvalidError{Field: "resource", Reason: fmt.Sprintf(
			"is given %d times with names so long that their grants may take %d bytes of a connection's options; at most %d fit: hold fewer, or one that stands for them",
			len(o.resources), size, maxGrantsBytes)}
	}
	return nil
}

// line returns facts as one line of JSON.
func (o *runFlags) line(facts map[string]any) []byte {
	facts["time"] = time.Now().UTC().Format(time.RFC3339Nano)
	if len(o.resources) > 1 {
		facts["resources"] = o.resources
	} else {
		facts["resource"] = o.lease.Resource
	}
	b, err := json.Marshal(facts)
	if err != nil {
		return nil
	}
	return append(b, '\n')
}

// once runs the command once, and maps its outcome to the exit code.
func (o *runFlags) once(ctx context.Context, cfg runner.Config, stderr io.Writer) error {
	result, err := runner.Run(ctx, cfg)
	if !errors.Is(err, runner.ErrSkipped) && !errors.Is(err, runner.ErrLate) {
		err = endedBy(ctx, err)
	}
	o.report(stderr, result, err)
	switch {
	case errors.Is(err, runner.ErrSkipped):
		if !o.json {
			cfg.Say("%v; the command was not started", err)
		}
		return nil
	case errors.Is(err, runner.ErrLate):
		return withHint(err, exitLost, "the command was not started; the gateway was slow to answer, and a longer --ttl leaves more time")
	case err != nil:
		return err
	case result.Lost != nil && cfg.OnLost == runner.Kill:
		return lostLease(result)
	case result.ExitCode != 0:
		return &childExit{code: result.ExitCode}
	}
	return nil
}

// lostError is a lease that was lost while the command ran.
type lostError struct {
	runner.Result
}

func (e *lostError) Error() string {
	end := fmt.Sprintf("the command had ended by itself, with exit code %d", e.ExitCode)
	switch {
	case e.Killed:
		end = "ended the command with KILL"
	case e.Ended:
		end = "ended the command with TERM"
	}
	return fmt.Sprintf("lost the lease on %q (token %d): %s; %s", e.LostOf.Resource, e.LostOf.Token, runner.Why(e.Lost), end)
}

func (e *lostError) Unwrap() error { return e.Lost }

// lostLease describes what happened to the command's writes.
func lostLease(result runner.Result) error {
	return withHint(&lostError{result}, exitLost, runner.Refused(result.Lost)+"; check what it wrote, then run it again")
}

// runDemo writes the outcome if JSON was requested.
func (o *runFlags) report(w io.Writer, result runner.Result, err error) {
	if !o.json {
		return
	}
	o.reported = true
	facts := map[string]any{"outcome": "done"}
	if _, hint := classify(err); err != nil && hint != "" && hint != seeHelp {
		facts["hint"] = hint
	}
	switch {
	case errors.Is(err, runner.ErrSkipped):
		facts["outcome"], facts["cause"] = "skipped", oneLine(pgtext.Of(err))
	case err != nil:
		facts["outcome"], facts["cause"] = "not started", oneLine(pgtext.Of(err))
	case result.Lost != nil:
		facts["outcome"], facts["cause"], facts["hint"] = "lost", result.Lost.Error(), runner.Refused(result.Lost)
	}
	switch {
	case err != nil:
	case len(result.Leases) > 1:
		facts["leases"], facts["exit_code"] = result.Leases, result.ExitCode
		if result.Lost != nil {
			facts["lost"] = result.LostOf.Resource
		}
	default:
		facts["token"], facts["exit_code"] = result.Leases[0].Token, result.ExitCode
	}
	_, _ = w.Write(o.line(facts))
}

const (
	// shortRun is a run so short that the command probably can't work: the next pause is longer.
	shortRun    = 10 * time.Second
	firstRest   = time.Second
	longestRest = 30 * time.Second
)

// again runs the command each time the lease is available, until ctx ends or an error that no retry helps.
func (o *runFlags) again(ctx context.Context, cfg runner.Config, stderr io.Writer) error {
	rest := firstRest
	for {
		began := time.Now()
		err := o.once(ctx, cfg, stderr)
		_, ended := errors.AsType[*childExit](err)
		lost, _ := errors.AsType[*exitError](err)
		if ctx.Err() != nil || err != nil && !ended && !runner.Retryable(err) && (lost == nil || lost.code != exitLost) {
			return err
		}
		if time.Since(began) >= shortRun {
			rest = firstRest
		}
		why := "it ended with 0"
		if err != nil {
			why = err.Error()
		}
		cfg.Say("%s; acquiring %s again in %s", strings.TrimSuffix(why, "."), strings.Join(o.resources, ", "), rest)
		select {
		case <-ctx.Done():
			return interruptedError{} // the outcome of the run before was said
		case <-time.After(rest):
		}
		rest = min(2*rest, longestRest)
	}
}

const runLong = `Run a command under a lease, or under several, all or none. The command finds in its environment

  FENCE_RESOURCE, FENCE_TOKEN                   the grant, for any client
  PGHOST, PGPORT, PGOPTIONS                     psql and every libpq driver write through the gateway
  JDBC_URL                                      the same for JDBC, which reads none of these
  AWS_CONTAINER_CREDENTIALS_FULL_URI,           the S3 tools and SDKs upload through the gateway,
  AWS_CONTAINER_AUTHORIZATION_TOKEN,            with credentials that they refresh as the lease
  AWS_REGION, AWS_ENDPOINT_URL_S3               is renewed
  RCLONE_CONFIG_FENCEGATE_…                     rclone has a remote fencegate: beside its own
  S3CMD_CONFIG, and PATH where aws is in it     s3cmd, and versions of aws before 2.13, find the endpoint

Drivers that ignore PGOPTIONS (asyncpg, pgx before 5.7.5) take it from a URL: with
--pg-url-env DATABASE_URL that variable leads through the gateway too, with the grant in it.
docs/frameworks.md lists drivers and versions, docs/s3.md S3 tools; those that read no endpoint, such
as boto3 before 1.28, must be given it.

With --s3-credentials=static it finds AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and
AWS_SESSION_TOKEN instead, for tools that read these only (curl, s3cmd). They write while the
lease is held. --s3-own-keys and --s3-read-only limit what the credentials are good for.

With several --resource, --wait and --on-held apply to all of them together: the command starts once
it holds all, and ends when it loses one. It finds all grants in PGOPTIONS, JDBC_URL and the
variables of --pg-url-env, and in FENCE_GRANTS (resource=token,…, names percent-encoded) instead of
FENCE_RESOURCE and FENCE_TOKEN. S3 credentials are of one resource: --s3-resource says of which; without
it the command gets no settings for S3.

The lease is renewed while the command runs. When it cannot be renewed, the command is ended
(TERM, then KILL) before another can get the lease; --on-lost=warn only warns. If fencegate itself
is paused, the fence refuses the command's late writes.

If another holds the resource, --wait waits, also while the gateway is away. After that,
--on-held=skip ends with 0, for cron jobs of which one is enough; --on-held=wait waits without
limit. --forever is for leaders: the command runs again whenever the lease can be acquired. With the
leader's address as --holder, others find it by "fencegate lease show".

The exit code is the command's own; 79 if the lease was lost and the command was ended, or not
started; 75 if another holds the resource.`

const runExample = `  fencegate run --resource reports/q3 --ttl 30s -- ./nightly-report.sh
  fencegate run --resource orders/1001 --wait 1m -- psql -c "UPDATE orders SET status = 'paid' WHERE id = 1001"
  fencegate run --resource accounts/7 --resource accounts/9 --wait 1m -- psql -1 -v ON_ERROR_STOP=1 -f transfer.sql
  fencegate run --resource accounts/7 --resource reports/q3 --s3-resource reports/q3 ./statement.sh
  fencegate run --resource reports/q3 --on-held skip ./nightly-report.sh --month 9
  fencegate run --resource leaders/mailer --forever --holder 10.0.0.7:8080 ./mailer`
