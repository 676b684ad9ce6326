package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fencegate/fencegate/gateway"
	"github.com/fencegate/fencegate/gateway/pgwire"
	"github.com/fencegate/fencegate/internal/terminal"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/migrate"
)

// serveFlags has what a flag says in other words than the gateway's configuration; the
// other flags write to cfg.
type serveFlags struct {
	cfg                          gateway.Config
	redis                        []string
	redisUser, redisPasswordFile string
	pgPolicies, pgLeases         []string
	s3Listen                     string
	masterKeyFile, tokenFile     string
	s3SecretKeyFile              string
	buckets                      []string
	logFormat                    string
}

func newServe(e env) *cobra.Command {
	var o serveFlags
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run a gateway in front of your PostgreSQL, Redis nodes and blobs",
		Long: `Run a gateway in front of your PostgreSQL, Redis nodes and blobs. It keeps no state of its
own: run as many as you like behind any balancer, with the same master key.

Passwords belong into the environment or into files, not on the command line: every flag has
a variable (--postgres-url is FENCEGATE_POSTGRES_URL), and secrets are read from files.`,
		Example: `  export FENCEGATE_POSTGRES_URL=postgres://fencegate_gateway:…@db/app
  fencegate serve --redis r1:6379,r2:6379,r3:6379 --blobs /var/lib/fencegate \
    --master-key-file /etc/fencegate/master.key --init`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := o.config(e)
			if err == nil {
				err = checkTogether(cmd.Flags())
			}
			if err != nil {
				return err
			}
			switch o.logFormat {
			case "text":
				cfg.Logger = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
			case "json":
				cfg.Logger = slog.New(slog.NewJSONHandler(cmd.ErrOrStderr(), nil))
			default:
				return usage(fmt.Errorf("--log-format %q: it must be text or json", o.logFormat))
			}
			g, err := gateway.New(cfg)
			if err != nil {
				return inFlags(err)
			}
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
			return g.Run(cmd.Context())
		},
	}
	o.register(cmd)
	return cmd
}

// tellToken shows a generated bearer token to a person; a log must not have it.
func tellToken(stderr io.Writer, token string) error {
	switch {
	case token == "":
		return nil
	case !terminal.Is(stderr):
		return usage(errors.New("off loopback the HTTP API needs a bearer token: name a file that holds one with --token-file"))
	}
	_, err := fmt.Fprintln(stderr, "bearer token of the HTTP API, made for this run:", token)
	return err
}

func (o *serveFlags) register(cmd *cobra.Command) {
	f, c := cmd.Flags(), &o.cfg
	f.StringVar(&c.PostgresURL, "postgres-url", "", "the guarded database, as a login in the role fence_gateway (required)")
	f.StringVar(&c.SQLURL, "sql-url", "", "the same database, as a login that is only in fence_writer: for SQL over HTTP (default: not offered)")
	f.StringSliceVar(&o.redis, "redis", nil, "addresses of the independent Redis nodes, 1, 3 or 5 of them, "+nodeForms+" (required)")
	f.StringVar(&o.redisUser, "redis-user", "", "user name on the Redis nodes")
	f.StringVar(&o.redisPasswordFile, "redis-password-file", "", "file with the Redis nodes' password (or the password itself in FENCEGATE_REDIS_PASSWORD)")
	f.StringVar(&c.APIListen, "api-listen", "127.0.0.1:7070", "address of the HTTP API")
	registerTLS(f, "api", "HTTP API", &c.APITLSCert, &c.APITLSKey, &c.APITLSClientCA)
	f.StringVar(&c.PGListen, "pg-listen", "127.0.0.1:7432", "address of the PostgreSQL port")
	f.StringVar(&c.PGSocket, "pg-socket", "", "path of a Unix socket for the PostgreSQL port, beside its address: DIRECTORY/.s.PGSQL.PORT (default: none)")
	f.StringVar(&c.PGTLSCert, "pg-tls-cert", "", "file with the certificate chain that the PostgreSQL port offers to clients (default: no TLS for clients)")
	f.StringVar(&c.PGTLSKey, "pg-tls-key", "", "file with its key")
	f.StringVar(&c.PGTLSClientCA, "pg-tls-client-ca", "", "file with the authorities of clients' certificates: clients of the PostgreSQL port must show one (default: none is asked for)")
	f.StringArrayVar(&o.pgPolicies, "pg-policy", nil, "what sessions without a current grant may do: USER=POLICY or USER@DATABASE=POLICY, with open, read-only or grant-required, and * for all; the first that fits counts (may be repeated; default: open)")
	f.StringArrayVar(&o.pgLeases, "pg-lease", nil, "resource that a role may lease with its login: USER=RESOURCE or USER=PREFIX* (may be repeated)")
	f.IntVar(&c.PG.MaxConnections, "pg-max-connections", 1000, "how many connections the PostgreSQL port takes at once")
	f.IntVar(&c.PG.MaxUserConnections, "pg-max-user-connections", 0, "how many of them one role may have (default: no limit of its own)")
	f.DurationVar(&c.PG.LoginTimeout, "pg-login-timeout", 30*time.Second, "how long a login to the PostgreSQL port may take")
	f.DurationVar(&c.PG.IdleTimeout, "pg-idle-timeout", 0, "end sessions that have been idle for so long outside of a transaction (default: never)")
	f.DurationVar(&c.PG.IdleInTransactionTimeout, "pg-idle-in-transaction-timeout", 0, "end sessions that have been idle for so long inside of a transaction (default: never)")
	f.DurationVar(&c.PG.SlowClientTimeout, "pg-slow-client-timeout", 0, "end sessions whose client for so long takes nothing of what PostgreSQL sends, or leaves a message unfinished (default: never)")
	f.DurationVar(&c.DrainTimeout, "drain-timeout", 10*time.Second, "how long a stop waits for transactions, requests and uploads to end")
	o.registerS3(f)
	f.StringVar(&c.AdvertiseHost, "advertise-host", "", "host name that clients reach the ports by (default: the one that they reached the HTTP API by)")
	f.StringVar(&c.BlobDir, "blobs", "", "where the blobs go: a folder, or s3://BUCKET/PREFIX?endpoint=URL&region=REGION with credentials in AWS_… variables, see docs/s3.md (default: no S3 port)")
	f.DurationVar(&c.SweepGrace, "sweep-grace", 24*time.Hour, "how long the bytes of versions that are neither current nor kept stay; longer than a backup of the blobs takes")
	f.IntVar(&c.SweepRate, "sweep-rate", 0, "how many blobs that nobody asks for any more are deleted in a second (default: as fast as the store does it)")
	f.StringVar(&c.S3.Region, "region", "us-east-1", "S3 region")
	f.StringVar(&o.masterKeyFile, "master-key-file", "", "file with the master keys, the same for all replicas: KEY-ID:64 hexadecimal digits, current first (required)")
	f.StringVar(&o.tokenFile, "token-file", "", "file with the bearer token of the HTTP API (default off loopback: one is made and shown, on a terminal)")
	f.StringVar(&c.S3.RootAccessKey, "s3-access-key", "", "access key that may read all objects and manage buckets")
	f.StringVar(&o.s3SecretKeyFile, "s3-secret-key-file", "", "file with its secret key")
	f.StringArrayVar(&o.buckets, "bucket", nil, "bucket and rule, made where missing: NAME=bucket, NAME=prefix:N or NAME=key, a lease each; also NAME=monotone… and NAME=none, see docs/s3.md (may be repeated)")
	f.DurationVar(&c.MaxTTL, "max-ttl", 0, "longest lease that is granted (default: the lock's)")
	f.DurationVar(&c.NodeTimeout, "node-timeout", lock.DefaultNodeTimeout, "how long one step waits for a Redis node")
	f.BoolVar(&c.InitNodes, "init", false, "admit Redis nodes that are proven empty at once: for the first start")
	f.StringVar(&o.logFormat, "log-format", "text", "text or json")
}

func (o *serveFlags) config(e env) (gateway.Config, error) {
	switch {
	case o.cfg.PostgresURL == "":
		return gateway.Config{}, usage(errors.New("--postgres-url is missing (or FENCEGATE_POSTGRES_URL)"))
	case len(o.redis) == 0:
		return gateway.Config{}, usage(errors.New("--redis is missing (or FENCEGATE_REDIS)"))
	case o.masterKeyFile == "":
		return gateway.Config{}, usage(errors.New("--master-key-file is missing (or FENCEGATE_MASTER_KEY_FILE)"))
	case o.cfg.PG.MaxConnections < 1:
		return gateway.Config{}, usage(errors.New("--pg-max-connections must be 1 or more"))
	case o.cfg.PG.LoginTimeout <= 0 || o.cfg.DrainTimeout <= 0:
		return gateway.Config{}, usage(errors.New("--pg-login-timeout and --drain-timeout must be more than 0"))
	}
	cfg := o.cfg
	cfg.Version = version()
	err := o.s3Port(&cfg)
	if err != nil {
		return gateway.Config{}, err
	}
	if cfg.PG.Rules, err = pgwire.ParseRules(splitAll(o.pgPolicies)); err != nil {
		return gateway.Config{}, inFlags(err)
	}
	if cfg.PG.LeaseRules, err = pgwire.ParseLeaseRules(splitAll(o.pgLeases)); err != nil {
		return gateway.Config{}, inFlags(err)
	}
	if cfg.Buckets, err = parseBuckets(splitAll(o.buckets)); err != nil {
		return gateway.Config{}, err
	}
	if cfg.MasterKey, err = readKeys(o.masterKeyFile); err != nil {
		return gateway.Config{}, err
	}
	password, _ := e.lookup(envPrefix + "REDIS_PASSWORD")
	for _, s := range []struct {
		flag, path string
		into       *string
	}{
		{"--token-file", o.tokenFile, &cfg.API.BearerToken},
		{"--s3-secret-key-file", o.s3SecretKeyFile, &cfg.S3.RootSecretKey},
		{"--redis-password-file", o.redisPasswordFile, &password},
	} {
		if s.path == "" {
			continue
		}
		if *s.into, err = readSecret(s.flag, s.path); err != nil {
			return gateway.Config{}, err
		}
	}
	if err = checkNodes(o.redis); err != nil {
		return gateway.Config{}, err
	}
	for _, addr := range o.redis {
		cfg.RedisNodes = append(cfg.RedisNodes, nodeAt(addr, o.redisUser, password))
	}
	return cfg, nil
}

// splitAll lets one variable carry several values, separated by commas.
func splitAll(values []string) []string {
	var all []string
	for _, v := range values {
		all = append(all, strings.Split(v, ",")...)
	}
	return all
}
