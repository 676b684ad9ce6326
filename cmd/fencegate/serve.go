package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fencegate/fencegate/gateway"
	"github.com/fencegate/fencegate/gateway/objects/maintenance"
	"github.com/fencegate/fencegate/internal/terminal"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/migrate"
)

// The values of --lock.
const (
	lockRedis    = "redis"
	lockPostgres = "postgres"
)

const lockUsage = "where leases come from: redis (embedded nodes), or postgres, without any Redis"

// fromPostgres parses --lock for dev and demo.
func fromPostgres(lock string) (bool, error) {
	if lock != lockRedis && lock != lockPostgres {
		return false, usage(fmt.Errorf("--lock %q: it must be redis or postgres", lock))
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
	maxLease                 time.Duration
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

Passwords belong into the environment or into files, not on the command line: every flag has
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
			cfg, err := o.config(e, log)
			if err == nil {
				err = first(checkTogether(cmd.Flags()))
			}
			if err != nil {
				return o.options.located(err)
			}
			warnShort(cfg.Logger, cfg.API.BearerToken)
			g, err := gateway.New(cfg)
			if err != nil {
				return o.options.located(inFlags(err))
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

func (o *serveFlags) register(cmd *cobra.Command) {
	f, c := cmd.Flags(), &o.cfg
	o.options.registerFile(f)
	f.StringVar(&c.PostgresURL, "postgres-url", "", "the guarded database, as a login in the role fence_gateway (required)")
	f.StringVar(&c.SQLURL, "sql-url", "", "the same database, as a login that is only in fence_writer: for SQL over HTTP (default: not offered)")
	f.IntVar(&c.SQLConnections, "sql-connections", 8, "how many requests of SQL over HTTP may run at once; further ones wait")
	f.StringVar(&o.lock, "lock", lockRedis, "where leases come from: redis, or postgres, which needs no Redis; the same for all gateways of a database")
	o.redis.register(f, " (required with --lock redis)")
	f.StringVar(&c.APIListen, "api-listen", "127.0.0.1:7070", "address of the HTTP API")
	f.IntVar(&c.API.MaxConnections, "api-max-connections", 4096, "how many connections the HTTP API has open at once; a further one replaces an idle one, or is closed if none is idle")
	f.StringVar(&c.MetricsListen, "metrics-listen", "", "address that serves /metrics alone, without a token, such as 127.0.0.1:9464 (default: only the HTTP API has it)")
	f.StringArrayVar(&c.MetricsPrefixes, "metrics-prefix", nil, "start of resource names, such as jobs/, by which /metrics counts held leases; the longest match counts (may be repeated, 20 at most; default: none)")
	f.DurationVar(&o.maxLease, "max-lease", 24*time.Hour, "how long a lease of the HTTP API may be renewed from its acquisition; 0: without limit")
	registerTLS(f, "api", "HTTP API", &c.APITLSCert, &c.APITLSKey, &c.APITLSClientCA)
	f.BoolVar(&c.APITLSClientOptional, "api-tls-client-optional", false, "also serve clients of the HTTP API without a certificate: their bearer token says who they are")
	o.registerPG(f)
	f.DurationVar(&c.LameDuck, "lame-duck", 0, "how long /readyz fails at a stop before the ports close, so that balancers notice")
	f.DurationVar(&c.DrainTimeout, "drain-timeout", 10*time.Second, "how long a stop waits for transactions, requests and uploads to end")
	o.registerS3(f)
	f.StringVar(&c.AdvertiseHost, "advertise-host", "", "host name that clients reach the ports by (default: the one that they reached the HTTP API by)")
	f.StringVar(&c.PGAdvertise, "pg-advertise", "", "HOST:PORT that clients reach the PostgreSQL port by, such as a balancer's (default: --advertise-host and the port that it listens on)")
	f.StringVar(&c.S3Advertise, "s3-advertise", "", "URL that clients reach the S3 port by, such as a balancer's https://s3.example.net (default: --advertise-host, and port and scheme as it listens)")
	f.StringVar(&c.BlobDir, "blobs", "", "where the blobs go: a folder, or s3://BUCKET/PREFIX?endpoint=URL&region=REGION with credentials in AWS_… variables, see docs/s3.md (default: no S3 port)")
	f.DurationVar(&c.SweepRecords, "sweep-records", maintenance.DefaultRecordAge, "how long the records of writes stay after their bytes have gone; longer than credentials last (24h) and an upload takes")
	f.DurationVar(&c.SweepGrace, "sweep-grace", 24*time.Hour, "how long the bytes of versions that are neither current nor kept stay; longer than a backup of the blobs takes")
	f.DurationVar(&c.RetireAfter, "retire-after", 0, "retire the fence of a resource that was unused for this long: PostgreSQL keeps no row of it (default: never)")
	f.IntVar(&c.SweepRate, "sweep-rate", 0, "how many unused blobs are deleted per second (default: as many as the store can)")
	f.StringVar(&c.S3.Region, "region", "us-east-1", "S3 region")
	f.StringVar(&o.masterKeyFile, "master-key-file", "", "file with the master keys, the same for all replicas: KEY-ID:64 hexadecimal digits, current first (required)")
	f.StringVar(&o.tokenFile, "token-file", "", "file with the bearer token of the HTTP API, with --principals read again at SIGHUP (default off loopback: one is made and shown, on a terminal)")
	f.StringVar(&o.principalsFile, "principals", "", "file with the principals and what each may do, read again at SIGHUP; what no rule allows is refused (default: every holder of the bearer token may do everything)")
	f.IntVar(&c.API.PrincipalRate, "api-rate", 0, "how many requests per second each principal may make to the HTTP API and the live page, except renewals and releases of leases (default: no limit)")
	f.StringVar(&c.S3.RootAccessKey, "s3-access-key", "", "access key that may read all objects and manage buckets")
	f.StringVar(&o.s3SecretKeyFile, "s3-secret-key-file", "", "file with its secret key")
	f.StringArrayVar(&o.buckets, "bucket", nil, "bucket and rule, made if missing: NAME=bucket, NAME=prefix:N or NAME=key, a lease each; also NAME=monotone… and NAME=none, see docs/s3.md (may be repeated)")
	f.DurationVar(&c.MaxTTL, "max-ttl", 0, "longest lease; over Redis at most the nodes' own, which --init sets to it at the first start (default: the nodes', 1m at the first start; 5m with --lock postgres)")
	f.DurationVar(&c.NodeTimeout, "node-timeout", lock.DefaultNodeTimeout, "how long one step waits for a Redis node")
	f.BoolVar(&c.BestEffort, "redis-best-effort", false, "choose availability over exclusion: admit a Redis node that lost its data, or failed over, at once; two may hold a resource then, and the fence lets only the newest write; the same for all gateways of a database")
	f.BoolVar(&c.InitNodes, "init", false, "admit Redis nodes that are proven empty at once: for the first start")
	o.log.register(f)
	for flag, key := range map[string]string{
		"node-timeout": "redis.node-timeout", "init": "redis.init", "token-file": "api.token-file", "region": "s3.region", "blobs": "s3.blobs", "bucket": "s3.buckets",
	} {
		markKey(f, flag, key)
	}
	o.markReloadable(f)
	markNeverEmpty(f, "principals", "token-file", "master-key-file", "pg-policy", "pg-policy-file", "s3-access-key", "s3-secret-key-file",
		"api-tls-cert", "api-tls-key", "api-tls-client-ca", "pg-tls-cert", "pg-tls-key", "pg-tls-client-ca", "s3-tls-cert", "s3-tls-key", "s3-tls-client-ca",
		"redis-password-file", "redis-tls-ca", "redis-tls-cert", "redis-tls-key")
}

func (o *serveFlags) registerPG(f *pflag.FlagSet) {
	c := &o.cfg
	f.StringVar(&c.PGListen, "pg-listen", "127.0.0.1:7432", "address of the PostgreSQL port")
	f.StringVar(&c.PGSocket, "pg-socket", "", "path of a Unix socket for the PostgreSQL port, beside its address: DIRECTORY/.s.PGSQL.PORT (default: none)")
	f.StringVar(&c.PGTLSCert, "pg-tls-cert", "", "file with the certificate chain that the PostgreSQL port offers to clients (default: no TLS for clients)")
	f.StringVar(&c.PGTLSKey, "pg-tls-key", "", "file with its key")
	f.StringVar(&c.PGTLSClientCA, "pg-tls-client-ca", "", "file with the authorities of clients' certificates: clients of the PostgreSQL port must show one (default: none is asked for)")
	f.StringArrayVar(&o.pgPolicies, "pg-policy", nil, "what sessions without a current grant may do: USER=POLICY or USER@DATABASE=POLICY, with open, read-only or grant-required, and * for all; the first that fits counts (may be repeated; default: open)")
	f.StringVar(&o.policyFile, "pg-policy-file", "", "file with the policies, read again at SIGHUP: lines such as policy app=open (instead of --pg-policy)")
	f.IntVar(&c.PG.MaxConnections, "pg-max-connections", 1000, "how many connections the PostgreSQL port takes at once")
	f.IntVar(&c.PG.MaxUserConnections, "pg-max-user-connections", 0, "how many of them one role may have (default: no limit of its own)")
	f.IntVar(&c.PG.MaxAddressLogins, "pg-max-address-logins", 0, "how many connections of one address may be on their way to a login (default: half of --pg-max-connections)")
	f.StringSliceVar(&o.pgProxies, "pg-proxy-from", nil, "networks of balancers whose connections to the PostgreSQL port begin with a header of the PROXY protocol, version 2, such as 10.0.0.0/24 (may be repeated; default: none)")
	f.BoolVar(&c.PG.NamesClients, "pg-client-in-name", true, "add the client's address to the application_name of sessions, which pg_stat_activity shows")
	f.DurationVar(&c.PG.FirstByteTimeout, "pg-first-byte-timeout", 5*time.Second, "how long a client of the PostgreSQL port may take to send its first byte")
	f.DurationVar(&c.PG.LoginTimeout, "pg-login-timeout", 30*time.Second, "how long a login to the PostgreSQL port may take")
	f.DurationVar(&c.PG.IdleTimeout, "pg-idle-timeout", 0, "end sessions that have been idle for this long outside of a transaction (default: never)")
	f.DurationVar(&c.PG.IdleInTransactionTimeout, "pg-idle-in-transaction-timeout", 0, "end sessions that have been idle for this long inside of a transaction (default: never)")
	f.DurationVar(&c.PG.SlowClientTimeout, "pg-slow-client-timeout", 0, "end sessions whose client reads nothing of what PostgreSQL sends, or leaves a message unfinished, for this long (default: never)")
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
