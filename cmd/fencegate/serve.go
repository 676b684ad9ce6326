package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fencegate/fencegate/gateway"
	"github.com/fencegate/fencegate/internal/option"
	"github.com/fencegate/fencegate/internal/terminal"
	"github.com/fencegate/fencegate/migrate"
)

// The values of --lock.
const (
	lockRedis    = "redis"
	lockPostgres = "postgres"
)

const lockUsage = "where leases come from: redis (embedded nodes), or postgres, without any Redis"

var checkLock = option.OneOf(lockRedis, lockPostgres)

// fromPostgres parses --lock for dev and demo.
func fromPostgres(lock string) (bool, error) {
	if reason := checkLock(lock); reason != "" {
		return false, usage(errors.New("--lock " + reason))
	}
	return lock == lockPostgres, nil
}

// serveFlags holds the flags whose form differs from the gateway's configuration. The other flags write to cfg.
type serveFlags struct {
	cfg                      gateway.Config
	lock                     string
	redis                    redisFlags
	pgPolicies               []string
	policyFile               string
	principalsFile           string
	pgProxies                []string
	s3Listen                 string
	masterKeyFile, tokenFile string
	s3SecretKeyFile          string
	buckets                  []string
	log                      logFlags
	options                  options
}

func newServe(e env) *cobra.Command {
	var o serveFlags
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run a gateway in front of your PostgreSQL, Redis nodes and blobs",
		Long: `Run a gateway in front of your PostgreSQL, Redis nodes and blobs. It keeps no lasting state of its
own: run any number behind a balancer, with the same master key. Leases come from
Redis nodes, or, with --lock postgres, from the same PostgreSQL: then there is no Redis.

Pass passwords by environment or file, not on the command line: every flag has
a variable (--postgres-url is FENCEGATE_POSTGRES_URL), and secrets are read from files.
With --config the options come from a YAML file. Variables override it, and flags override
variables. On SIGHUP it is read again; "fencegate config check" reads it as serve does.`,
		Example: `  export FENCEGATE_POSTGRES_URL=postgres://fencegate_gateway:…@db/app
  fencegate serve --redis r1:6379,r2:6379,r3:6379 --blobs /var/lib/fencegate \
    --master-key-file /etc/fencegate/master.key --init
  fencegate serve --lock postgres --master-key-file /etc/fencegate/master.key
  fencegate serve --config /etc/fencegate/fencegate.yaml`,
		Args:              cobra.NoArgs,
		Annotations:       map[string]string{reloads: ""},
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return o.options.resolve(e, cmd) },
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := o.log.open(cmd.ErrOrStderr())
			if err != nil {
				return o.options.located(err)
			}
			for _, warning := range o.warnings(e, cmd.Root()) {
				log.Warn(warning)
			}
			cfg, wrong := o.read(e, log)
			if len(wrong) > 0 {
				return o.options.located(wrong[0])
			}
			warnShort(cfg.Logger, cfg.API.BearerToken)
			g, err := gateway.New(cfg)
			if err != nil {
				return o.options.located(o.options.inFlags(err))
			}
			defer o.reloading(cmd.Context(), e, g, cfg)()
			if err := tellToken(cmd.ErrOrStderr(), g.GeneratedToken()); err != nil {
				return err
			}
			which := migrate.Fence
			if cfg.S3Listen != "" {
				which = migrate.All
			}
			if err := awaitSchema(cmd.Context(), cfg.PostgresURL, which, schemaPatience, cfg.Logger); err != nil {
				return err
			}
			return runUntilAskedTwice(cmd.Context(), g)
		},
	}
	o.register(cmd)
	return cmd
}

// abortTimeout bounds notifying sessions and PostgreSQL of the end.
const abortTimeout = 3 * time.Second

// runUntilAskedTwice runs the gateway. A second request to end skips the drain.
func runUntilAskedTwice(ctx context.Context, g *gateway.Gateway) error {
	asked := make(chan os.Signal, 2)
	signal.Notify(asked, withoutHangup(endings)...)
	defer signal.Stop(asked)
	ended := make(chan error, 1)
	go func() { ended <- g.Run(ctx) }()
	for times := 0; ; {
		select {
		case err := <-ended:
			return err
		case <-asked:
			if times++; times > 1 {
				g.Abort()
				select {
				case err := <-ended:
					return errors.Join(err, context.Canceled)
				case <-time.After(abortTimeout):
					return context.Canceled
				}
			}
		}
	}
}

var errNeedsToken = errors.New("off loopback the HTTP API needs a bearer token: name a file that holds one with --token-file")

// tellToken prints a generated bearer token. It fails unless stderr is a terminal, so that no log contains the token.
func tellToken(stderr io.Writer, token string) error {
	switch {
	case token == "":
		return nil
	case !terminal.Is(stderr):
		return usage(errNeedsToken)
	}
	_, err := fmt.Fprintln(stderr, "bearer token of the HTTP API, made for this run:", token)
	return err
}

// table declares the options of serve: the gateway's, with what the command line keeps in another form, and its own.
func (o *serveFlags) table() option.Table {
	t := slices.Concat(o.cfg.Table(), o.redis.table(" (required with --lock redis)"), o.log.table(), option.Table{
		{Field: "PostgresLeases", At: &o.lock, Default: lockRedis, Check: checkLock, Flag: "lock", Common: true, Help: "where leases come from: redis, or postgres, which needs no Redis; the same for all gateways of a database"},
		{Field: "PG.RulesFile", At: &o.policyFile, Needs: []string{"PGListen"}, Flag: "pg-policy-file", Secret: true, Reload: option.Applies, Help: "file with the policies, read again at SIGHUP: lines such as policy app=open (instead of --pg-policy)"},
	})
	t.Bind(map[string]any{
		"keyring": &o.masterKeyFile, "Principals": &o.principalsFile, "Buckets": &o.buckets, "S3Listen": &o.s3Listen,
		"API.BearerToken": &o.tokenFile, "PG.Rules": &o.pgPolicies, "PG.ProxyNetworks": &o.pgProxies, "S3.RootSecretKey": &o.s3SecretKeyFile,
	})
	return t
}

func (o *serveFlags) register(cmd *cobra.Command) {
	o.options.register(cmd, o.table())
}

func parseNetworks(texts []string) (all []netip.Prefix, err error) {
	for _, text := range texts {
		network, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, usage(fmt.Errorf("--pg-proxy-from %q is not a network; write it as 10.0.0.0/24", text))
		}
		all = append(all, network.Masked())
	}
	return all, nil
}

// splitAll splits values at commas, so that one variable can carry several.
func splitAll(values []string) []string {
	var all []string
	for _, v := range values {
		all = append(all, strings.Split(v, ",")...)
	}
	return all
}
