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
	"github.com/fencegate/fencegate/lock/admin"
)

func newNodesInit(e env) *cobra.Command {
	var g group
	var above int64
	var maxTTL time.Duration
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Admit the nodes of a new group at once, or go on without PostgreSQL after the loss of a majority",
		Long: `Admit the nodes of a new group at once, as "fencegate serve --init" does. They have to be empty, and
keep --max-ttl as the longest TTL of the group. Without PostgreSQL (--redis-prefix names the group then)
a new group can't be told from one that lost all its data: run this once.

With --above it goes on with a group without PostgreSQL, after so many nodes were lost at once that
the others can't tell how far tokens were counted. TOKEN must be no lower than any token issued, as
the systems that check tokens recorded it. All later tokens are higher. It is refused if TOKEN is not
higher than what a node remembers, if a majority is admitted (they admit the others), and if
PostgreSQL keeps the epoch (see "fencegate nodes admit"). It waits for the longest TTL of the group, as
the remaining nodes keep it, else for --max-ttl. Interrupted in its wait, it goes on when it is run
again. A majority of the nodes has to answer. It admits all that it can, or none if they are no
majority. If it ends in the middle of that, the repeat is refused and names a token that is high
enough: take that one as TOKEN, if nobody was given a higher one.

--redis-prefix is the KeyPrefix of the programs' lock.Config, "fencegate" if they set none.`,
		Example: `  fencegate nodes init --max-ttl 2m --redis r1:6379,r2:6379,r3:6379
  fencegate nodes init --above 8589934600 --redis r1:6379,r2:6379,r3:6379 --redis-prefix fencegate`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			goesOn := cmd.Flags().Changed("above")
			cfg := lock.Config{MaxTTL: maxTTL}
			switch {
			case g.url == "":
				return g.with(cmd.Context(), e, cfg, func(l *admin.Admin) error {
					return initNodes(cmd, l, func(ctx context.Context) error {
						if goesOn {
							return l.InitAbove(ctx, fence.Token(above))
						}
						return l.Init(ctx)
					})
				})
			case goesOn:
				return usage(errors.New("--above is for a group without PostgreSQL, and --postgres-url (or FENCEGATE_POSTGRES_URL) names one: see `fencegate nodes admit`"))
			}
			return (&database{url: g.url}).with(cmd.Context(), func(pool *pgxpool.Pool) error {
				f := pgfence.New(pool)
				cfg.Armer, cfg.Epochs = f, f // it knows whether a lease was ever acquired
				return g.with(cmd.Context(), e, cfg, func(l *admin.Admin) error { return initNodes(cmd, l, l.Init) })
			})
		},
	}
	g.register(cmd)
	cmd.Flags().Int64Var(&above, "above", 0, "without PostgreSQL: a token that is no lower than any token issued")
	cmd.Flags().DurationVar(&maxTTL, "max-ttl", 0, "longest TTL of a new group, or of one whose nodes do not know it any more (default 1m)")
	markTypedOnly(cmd, "above") // it applies to one loss only
	return cmd
}

func initNodes(cmd *cobra.Command, l *admin.Admin, start func(context.Context) error) error {
	begun := time.Now()
	before := map[string]bool{}
	for _, st := range l.Status(cmd.Context()) {
		before[st.Name] = st.Admitted
	}
	failed := start(cmd.Context())
	admitted := 0
	for _, st := range l.Status(context.WithoutCancel(cmd.Context())) {
		if !st.Admitted || before[st.Name] {
			continue
		}
		if _, err := fmt.Fprintf(cmd.ErrOrStderr(), "%s is admitted, after %v; it grants leases of up to %v\n", st.Name, time.Since(begun).Round(time.Millisecond), st.MaxTTL); err != nil {
			return err
		}
		admitted++
	}
	if failed == nil && admitted == 0 {
		_, err := fmt.Fprintln(cmd.ErrOrStderr(), "the nodes are admitted already")
		return err
	}
	return nodesError(failed)
}

// nodesError adds the exit code to an error of a Locker.
func nodesError(err error) error {
	if invalid, ok := errors.AsType[*fence.InvalidError](err); ok {
		return usage(invalid)
	}
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	return withHint(err, exitUnavailable, "see `fencegate nodes status`")
}

func newNodesMaxTTL(e env) *cobra.Command {
	var g group
	cmd := &cobra.Command{
		Use:   "max-ttl DURATION",
		Short: "Change the longest TTL that the nodes of a group grant",
		Long: `Change the longest TTL that the nodes of a group grant. It is also the length of the quarantine after
the loss of a majority, or of the only node.

All nodes have to be admitted. A longer TTL is granted once every node and every gateway knows of it,
after 5 s. A shorter one is in force at once; this command then waits until every longer lease has
ended, and quarantines are shorter from then on. Interrupted, it is safe, and is run again.

Give gateways and programs no longer --max-ttl (Config.MaxTTL) than this: they refuse to start with
--init otherwise. If none of the nodes is left, their own is the length of the quarantine.`,
		Example: `  fencegate nodes max-ttl 5m --redis r1:6379,r2:6379,r3:6379`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ttl, err := time.ParseDuration(args[0])
			if err != nil {
				return usage(fmt.Errorf("%q is not a duration such as 5m", args[0]))
			}
			return g.with(cmd.Context(), e, lock.Config{}, func(l *admin.Admin) error {
				for _, st := range l.Status(cmd.Context()) {
					if st.Admitted && st.MaxTTL > ttl {
						if _, err := fmt.Fprintf(cmd.ErrOrStderr(), "waiting for up to %v until every longer lease has ended\n", st.MaxTTL); err != nil {
							return err
						}
						break
					}
				}
				if err := l.SetMaxTTL(cmd.Context(), ttl); err != nil {
					return nodesError(err)
				}
				_, err := fmt.Fprintf(cmd.ErrOrStderr(), "the nodes grant leases of up to %v\n", ttl)
				return err
			})
		},
	}
	g.register(cmd)
	return cmd
}
