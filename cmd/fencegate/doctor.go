package main

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/fencegate/fencegate/internal/doctor"
)

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

func newDoctor(e env) *cobra.Command {
	var cfg doctor.Config
	var nodes redisFlags
	var g gatewayFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check PostgreSQL, Redis, the gateway and the blob folder, and say what to do",
		Long: `Check the parts of an installation: PostgreSQL (version, schema, roles, privileges, guards,
event triggers, timeouts, durability, poolers in between), the Redis nodes (admission,
persistence, eviction, replicas, clocks), each gateway, and the blob folder. It examines only the parts
that you name. It changes nothing and prints no password. With a bearer token (FENCEGATE_TOKEN or
--token-file) it tries it at each gateway, and compares the master keys of several.

Each line is OK, WARN (works, but not as well or as safely as it could) or FAIL, with what to do.
The exit code is 1 if a check is FAIL.`,
		Example: `  FENCEGATE_POSTGRES_URL=postgres://fencegate_gateway:…@db/app fencegate doctor --redis r1:6379,r2:6379,r3:6379
  fencegate doctor --gateway http://gw1:7070,http://gw2:7070 --token-file token
  fencegate doctor --postgres-url postgres://admin@db/app --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if cfg.RedisNodes, err = nodes.nodes(e); err != nil {
				return err
			}
			g.url = cfg.GatewayURL
			if cfg.Token, err = g.bearer(cmd.Context(), e); err != nil {
				return err
			}
			if g.certified() {
				if cfg.GatewayTLS, err = g.tls(cmd.Context()); err != nil {
					return err
				}
			}
			if cfg.PostgresURL == "" && len(cfg.RedisNodes) == 0 && cfg.GatewayURL == "" && cfg.BlobDir == "" {
				return usage(errors.New("nothing to examine: name at least one of --postgres-url, --redis, --gateway and --blobs"))
			}
			cfg.KeyPrefix = nodes.prefix
			if cfg.Patience <= 0 {
				return usage(errors.New("--patience must be more than 0"))
			}
			return examine(cmd, cfg, asJSON)
		},
	}
	nodes.register(cmd.Flags(), "")
	f := cmd.Flags()
	f.StringVar(&cfg.PostgresURL, "postgres-url", "", "the guarded database, as the gateway's login or the one that migrates (better in FENCEGATE_POSTGRES_URL: it may hold a password)")
	f.StringVar(&cfg.GatewayURL, "gateway", "", "base URL of a gateway's HTTP API; those of several of one group, separated by commas: each is examined")
	g.registerAccess(cmd)
	f.StringVar(&cfg.BlobDir, "blobs", "", "where the gateway's blobs are: its --blobs")
	f.DurationVar(&cfg.Patience, "patience", 10*time.Second, "how long to wait for each part")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// examine prints doctor's findings.
func examine(cmd *cobra.Command, cfg doctor.Config, asJSON bool) error {
	redis.SetLogger(silent{}) // its messages are findings already
	findings := doctor.Examine(cmd.Context(), cfg)
	show := doctor.Print
	if asJSON {
		show = doctor.PrintJSON
	}
	if err := show(cmd.OutOrStdout(), findings); err != nil {
		return err
	}
	if doctor.Worst(findings) == doctor.Fail {
		return errors.New("doctor found problems; see FAIL")
	}
	return nil
}
