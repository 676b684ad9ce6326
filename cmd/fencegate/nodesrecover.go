package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/lock"
)

func newNodesPark(e env) *cobra.Command {
	var g group
	cmd := &cobra.Command{
		Use:   "park NODE",
		Short: "Have a node grant nothing, so that its restart is admitted at once",
		Long: `Have a node grant nothing from now on. Restart its server then: with all its data it is admitted at
once, by a gateway, or by "fencegate nodes admit". Its leases outlast that, where their TTL does.
It is for the only node of a group: among three or five the others shorten a quarantine.

The node must save its data on shutdown, to an append-only file or a snapshot. PostgreSQL keeps
what lets the restart be told from every other one, and that counts once. Where the data is older
or gone, or the node was admitted in between, the quarantine is what it is for a lost node.

"fencegate nodes admit NODE" takes a parked node back without a restart.`,
		Example: `  fencegate nodes park r1:6379 --redis r1:6379`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return (&database{url: g.url}).with(cmd.Context(), func(pool *pgxpool.Pool) error {
				return g.with(cmd.Context(), e, lock.Config{Epochs: pgfence.New(pool)}, func(l *lock.Locker) error {
					if err := l.Park(cmd.Context(), args[0]); err != nil {
						return withHint(err, exitUnavailable, "see `fencegate nodes status`")
					}
					_, err := fmt.Fprintf(cmd.ErrOrStderr(), "%s is parked: restart its server\n", args[0])
					return err
				})
			})
		},
	}
	g.register(cmd)
	return cmd
}

func newNodesRecover(e env) *cobra.Command {
	var redis redisFlags
	var above int64
	var maxTTL time.Duration
	cmd := &cobra.Command{
		Use:   "recover --above TOKEN",
		Short: "Without PostgreSQL: admit the lost nodes after the loss of a majority",
		Long: `Admit the lost nodes of a group without PostgreSQL, after so many were lost at once that the others
cannot tell how far tokens were counted. TOKEN says it: at least the highest token that anybody was
ever given, as the systems that check tokens recorded it. All later tokens are higher.

It is refused where TOKEN is not higher than what a node remembers, where a majority is admitted
(they admit the others), and where PostgreSQL keeps the epoch (see "fencegate nodes admit"). It
waits for --max-ttl, the longest time for which a lease may still be held. Interrupted in its wait,
it goes on when it is run again. A majority of the nodes has to answer.

It admits all that it can, or none where they are no majority. Where it ends in the middle of that,
the repeat is refused and names a token that is high enough: take that one as TOKEN, if nobody was
given a higher one.

--redis-prefix is the KeyPrefix of the programs' lock.Config, "fencegate" where they set none.`,
		Example: `  fencegate nodes recover --above 8589934600 --redis r1:6379,r2:6379,r3:6379 --redis-prefix fencegate`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case !cmd.Flags().Changed("above"):
				return usage(errors.New("--above is missing: at least the highest token that anybody was ever given"))
			case redis.prefix == "":
				return usage(errors.New("--redis-prefix is missing: the KeyPrefix of the programs' lock.Config, \"fencegate\" where they set none"))
			}
			g := group{redis: redis}
			cfg := lock.Config{MaxTTL: maxTTL, DefaultTTL: min(time.Second, maxTTL)}
			return g.with(cmd.Context(), e, cfg, func(l *lock.Locker) error { return recoverNodes(cmd, l, fence.Token(above)) })
		},
	}
	redis.register(cmd.Flags(), "")
	cmd.Flags().Int64Var(&above, "above", 0, "at least the highest token that anybody was ever given")
	cmd.Flags().DurationVar(&maxTTL, "max-ttl", lock.DefaultMaxTTL, "longest lease that the programs allow: their Config.MaxTTL")
	markTypedOnly(cmd, "above") // it applies to one loss only
	return cmd
}

func recoverNodes(cmd *cobra.Command, l *lock.Locker, above fence.Token) error {
	begun := time.Now()
	admitted, err := l.Recover(cmd.Context(), above)
	for _, name := range admitted {
		if _, err := fmt.Fprintf(cmd.ErrOrStderr(), "%s is admitted, after %v\n", name, time.Since(begun).Round(time.Millisecond)); err != nil {
			return err
		}
	}
	if invalid, ok := errors.AsType[*fence.InvalidError](err); ok {
		return usage(invalid)
	}
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	return withHint(err, exitUnavailable, "see `fencegate nodes status`")
}
