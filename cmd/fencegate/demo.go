package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/internal/demo"
	"github.com/fencegate/fencegate/internal/terminal"
)

const (
	demoTTL       = 2 * time.Second
	watchTTL      = 5 * time.Second
	demoWait      = 20 * time.Second
	watchPause    = 2 * time.Second
	workerCommand = "demo-worker"

	// directVariable passes PostgreSQL's own address to a worker. It holds a password.
	directVariable = "DEMO_DIRECT_URL"
)

func newDemo(e env) *cobra.Command {
	var g gatewayFlags
	var watch bool
	var adminURL, lock string
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Watch a paused writer being refused by the storage, on real processes",
		Long: `Watch a paused writer being refused by the storage.

Worker A acquires orders/1001 and is stopped with SIGSTOP beyond its lease. Worker B takes
over and does the work. A wakes up, and both its SQL write and its upload are refused. The
exit code is 0 only if all of this happened.

Without --gateway it starts a stack of its own and leaves nothing behind. With --gateway it
uses a running one; --postgres-url then names its database, as a login that may create a
schema. There the demo uses names of its own: the resource fencegate-demo/1001, the bucket
fencegate-demo, and the schema fencegate_demo, which it removes.`,
		Example: `  fencegate demo
  fencegate demo --watch
  FENCEGATE_POSTGRES_URL=postgres://admin:…@db/app fencegate demo --gateway http://gateway:7070 --token-file token`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			screen := &demo.Screen{Out: cmd.OutOrStdout(), Color: colorful(e)}
			if watch {
				screen.Slow = watchPause
			}
			ctx := cmd.Context()
			cfg := demo.Config{Bucket: "orders", TTL: demoTTL, Screen: screen}
			if watch {
				cfg.TTL = watchTTL
			}
			alone := !cmd.Flags().Changed("gateway")
			postgres, err := fromPostgres(lock)
			switch {
			case err != nil:
				return err
			case !alone && adminURL == "":
				return usage(errors.New("--gateway needs --postgres-url: its database, as a login that may create a schema"))
			}
			screen.Start("fencegate demo: a paused writer meets the fence")
			if alone {
				return demoOnOwnStack(ctx, cfg, postgres)
			}
			cfg.Bucket = "fencegate-demo"
			return demoOnGateway(ctx, e, cfg, g, adminURL)
		},
	}
	g.register(cmd)
	markTypedOnly(cmd, "gateway") // a variable that names a gateway must not make the demo write to it
	cmd.Flags().BoolVar(&watch, "watch", false, "slow down and explain")
	cmd.Flags().StringVar(&lock, "lock", lockRedis, "without --gateway: "+lockUsage)
	cmd.Flags().StringVar(&adminURL, "postgres-url", "", "with --gateway: its database (better in FENCEGATE_POSTGRES_URL: it may hold a password)")
	return cmd
}

// demoOnOwnStack runs the demo on a stack that ends with it.
func demoOnOwnStack(ctx context.Context, cfg demo.Config, postgres bool) (err error) {
	dev, err := startDemoStack(ctx, postgres, func(line string) { cfg.Screen.Step("set-up", line) })
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	leases := "3 Redis nodes"
	if postgres {
		leases = "no Redis"
	}
	cfg.Screen.Step("set-up", "ready: "+dev.PostgreSQL()+", "+leases+", gateway")
	if cfg.Client, err = client.New(client.Config{URL: dev.GatewayURL()}); err != nil {
		return err
	}
	cfg.AdminURL = dev.AdminURL()
	if err := configureWorkers(&cfg, dev.GatewayURL(), "", dev.DatabaseURL()); err != nil {
		return err
	}
	return runDemo(ctx, cfg)
}

// demoOnGateway runs the demo on a running gateway. The workers use the given login too.
func demoOnGateway(ctx context.Context, e env, cfg demo.Config, g gatewayFlags, adminURL string) error {
	var err error
	if cfg.Client, err = g.client(ctx, e); err != nil {
		return err
	}
	token, _ := e.lookup(tokenVariable)
	if g.tokenFile != "" {
		if token, err = readSecret("--token-file", g.tokenFile); err != nil {
			return err
		}
	}
	cfg.AdminURL = adminURL
	if err := checkPassfile(adminURL); err != nil {
		return err
	}
	if err := configureWorkers(&cfg, g.url, token, adminURL); err != nil {
		return err
	}
	return runDemo(ctx, cfg)
}

func runDemo(ctx context.Context, cfg demo.Config) error {
	if err := demo.Run(ctx, cfg); err != nil {
		return err
	}
	_, err := fmt.Fprintln(cfg.Screen.Out, "\nThe lock could not stop worker A. The fence did: at the storage, by comparing tokens.")
	return err
}

// configureWorkers configures how the workers are started. Their parameters
// are passed in the environment, which process lists do not show.
func configureWorkers(cfg *demo.Config, gatewayURL, token, login string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	u, err := url.Parse(login)
	if err != nil || u.User == nil {
		return usage(errors.New("--postgres-url must be of the form postgres://user:password@host/database"))
	}
	password, _ := u.User.Password()
	cfg.Login = u.User.Username()
	cfg.Worker = []string{self, workerCommand, "--bucket", cfg.Bucket, "--ttl", cfg.TTL.String()}
	cfg.Environ = append(os.Environ(),
		envName("gateway")+"="+gatewayURL,
		envPrefix+"TOKEN="+token,
		"PGUSER="+cfg.Login, "PGPASSWORD="+password, "PGDATABASE="+strings.TrimPrefix(u.Path, "/"), "PGSSLMODE=prefer",
		"AWS_EC2_METADATA_DISABLED=true",
		directVariable+"="+login,
	)
	return nil
}

// newDemoWorker is the process that the demo starts twice.
func newDemoWorker(e env) *cobra.Command {
	var g gatewayFlags
	var bucket string
	var ttl time.Duration
	cmd := &cobra.Command{
		Use:    workerCommand + " NAME",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := g.client(cmd.Context(), e)
			if err != nil {
				return err
			}
			direct, _ := e.lookup(directVariable)
			w := demo.Worker{Client: c, Bucket: bucket, Name: args[0], TTL: ttl, Direct: direct, Wait: demoWait, In: cmd.InOrStdin(), Out: cmd.OutOrStdout()}
			return w.Run(cmd.Context())
		},
	}
	g.register(cmd)
	cmd.Flags().StringVar(&bucket, "bucket", "", "bucket of the demo")
	cmd.Flags().DurationVar(&ttl, "ttl", demoTTL, "length of the lease")
	return cmd
}

// colorful reports whether the output is a terminal that wants colors.
func colorful(e env) bool {
	if _, set := e.lookup("NO_COLOR"); set {
		return false
	}
	return terminal.Is(e.stdout)
}
