package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/admin"
)

func newNodes(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "nodes",
		Short: "Look after the Redis nodes of the lock",
		Long: `Look after the Redis nodes of the lock. The commands connect to the nodes: run them where the nodes
can be reached, with the same --redis (or FENCEGATE_REDIS) as the gateways.

Nodes may serve several databases, each with keys of its own. --postgres-url (or
FENCEGATE_POSTGRES_URL) names the database; with --redis-prefix PostgreSQL is not asked.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newNodesStatus(e), newNodesInit(e), newNodesAdmit(e), newNodesMaxTTL(e), newNodesMode(e), newNodesLeaks(e), newNodesSweep(e))
	return cmd
}

// group holds the flags for the nodes and the key prefix.
type group struct {
	redis redisFlags
	url   string
}

func (g *group) register(cmd *cobra.Command) {
	g.redis.register(cmd.Flags(), "")
	cmd.Flags().StringVar(&g.url, "postgres-url", "", "the database whose Redis keys to use, as "+asGateway+" (better in FENCEGATE_POSTGRES_URL: it may hold a password)")
}

// with calls f with a Locker on the nodes.
func (g *group) with(ctx context.Context, e env, cfg lock.Config, f func(*admin.Admin) error) error {
	var err error
	if cfg.Nodes, err = g.redis.nodes(e); err != nil {
		return err
	}
	if len(cfg.Nodes) == 0 {
		return usage(errors.New("--redis is missing (or FENCEGATE_REDIS)"))
	}
	cfg.NodeTimeout = time.Second
	if err := cfg.Validate(); err != nil {
		return err
	}
	prefix, err := g.redis.keyPrefix(ctx, g.url)
	if err != nil {
		return err
	}
	cfg.KeyPrefix = lock.Prefix(prefix)
	l, err := admin.New(cfg)
	if err != nil {
		return err
	}
	return errors.Join(f(l), l.Close())
}

// withEpochs is with, for commands that may start a new epoch: the database keeps it, if one is named.
func (g *group) withEpochs(ctx context.Context, e env, cfg lock.Config, f func(*admin.Admin) error) error {
	if g.url == "" {
		return g.with(ctx, e, cfg, f)
	}
	return (&database{url: g.url}).with(ctx, func(pool *pgxpool.Pool) error {
		cfg.Epochs = pgfence.New(pool)
		return g.with(ctx, e, cfg, f)
	})
}

// shownNode is a node's state in JSON.
type shownNode struct {
	Name         string  `json:"name"`
	Admitted     bool    `json:"admitted"`
	QuarantineMS int64   `json:"quarantine_ms"` // the remaining quarantine
	MaxTTLMS     int64   `json:"max_ttl_ms"`    // the longest TTL that it grants
	Epoch        int64   `json:"epoch"`
	RTTMicros    int64   `json:"rtt_us"`
	BestEffort   bool    `json:"best_effort"` // admitted without a quarantine: see "nodes mode"
	Watched      bool    `json:"watched"`     // a failover and evicted keys are noticed
	Warning      string  `json:"warning,omitempty"`
	Error        *string `json:"error"` // null: the node answered
}

func newNodesStatus(e env) *cobra.Command {
	var g group
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Print each node's state as JSON; exit code 69 if no lease can be acquired",
		Long: `Print each node's state as JSON; exit code 69 if no lease can be acquired.

quarantine_ms is how long a node that restarted or lost its data still grants nothing. max_ttl_ms is
the longest TTL that a node grants; "fencegate nodes max-ttl" changes it. A quarantine lasts as long if
too few other nodes can tell how long their locks last. best_effort is true if a node is admitted
without a quarantine: see "fencegate nodes mode". watched is false if a failover or evicted keys would
go unnoticed.`,
		Example: `  fencegate nodes status --redis r1:6379,r2:6379,r3:6379`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return g.with(cmd.Context(), e, lock.Config{}, func(l *admin.Admin) error {
				shown, admitted := []shownNode{}, 0
				hint := "a first start is `fencegate serve --init` or `fencegate nodes init`; a node that lost its data comes back by itself, or by `fencegate nodes admit`; without PostgreSQL a group that lost a majority needs `fencegate nodes init --above TOKEN`"
				for _, st := range l.Status(cmd.Context()) {
					one := shownNode{
						Name: st.Name, Admitted: st.Admitted, QuarantineMS: st.Quarantine.Milliseconds(), MaxTTLMS: st.MaxTTL.Milliseconds(),
						Epoch: st.Epoch, RTTMicros: st.RTT.Microseconds(), BestEffort: st.BestEffort, Watched: st.Watched, Warning: st.Warning,
					}
					if st.Err != nil {
						why := st.Err.Error()
						one.Error = &why
						if errors.Is(st.Err, lock.ErrNoPassword) {
							hint = why
						}
					}
					if st.Admitted {
						admitted++
					}
					shown = append(shown, one)
				}
				if err := printJSON(cmd.OutOrStdout(), shown); err != nil {
					return err
				}
				if quorum := len(shown)/2 + 1; admitted < quorum {
					return withHint(fmt.Errorf("%d of %d nodes are admitted, and %d are needed", admitted, len(shown), quorum), exitUnavailable, hint)
				}
				return nil
			})
		},
	}
	g.register(cmd)
	return cmd
}

func newNodesAdmit(e env) *cobra.Command {
	var g group
	cmd := &cobra.Command{
		Use:   "admit NODE",
		Short: "Admit a node that restarted or lost its data, after its quarantine",
		Long: `Admit a node that restarted or lost its data, after its quarantine. Gateways do it by themselves.
Use this when no gateway runs, or to watch it.

It takes as long as a lease that the node has forgotten may still be held: as the other nodes know,
at most the longest TTL of the group. Tokens continue above everything that was lost, by an epoch
that PostgreSQL keeps. A group without PostgreSQL, named by --redis-prefix, needs a majority of other
admitted nodes, which keep the epoch; without them it goes on by "fencegate nodes init --above".

It is for a strict group. A gateway with --redis-best-effort admits its nodes at once: a node that
this command admitted is strict, and such gateways refuse it until "nodes mode best-effort".`,
		Example: `  fencegate nodes admit r2:6379 --redis r1:6379,r2:6379,r3:6379`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return g.withEpochs(cmd.Context(), e, lock.Config{}, func(l *admin.Admin) error { return admitNode(cmd, l, args[0]) })
		},
	}
	g.register(cmd)
	return cmd
}

func admitNode(cmd *cobra.Command, l *admin.Admin, name string) error {
	for _, st := range l.Status(cmd.Context()) {
		if st.Name == name && st.Admitted {
			_, err := fmt.Fprintf(cmd.ErrOrStderr(), "%s is admitted already\n", name)
			return err
		}
	}
	begun := time.Now()
	if err := l.Admit(cmd.Context(), name); err != nil {
		if errors.Is(err, context.Canceled) {
			return err
		}
		return withHint(err, exitUnavailable, "see `fencegate nodes status`")
	}
	_, err := fmt.Fprintf(cmd.ErrOrStderr(), "%s is admitted, after %v\n", name, time.Since(begun).Round(time.Millisecond))
	return err
}

func newNodesLeaks(e env) *cobra.Command {
	var g group
	cmd := &cobra.Command{
		Use:   "leaks",
		Short: "Print locks that never end as JSON; exit code 1 where there are any",
		Long: `Print locks that never end as JSON. fencegate leaves none, but a PERSIST, a restore or a script
of somebody else can. Take such a resource from its holder with
"fencegate revoke RESOURCE --gateway URL".`,
		Example: `  fencegate nodes leaks --redis r1:6379,r2:6379,r3:6379`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return g.with(cmd.Context(), e, lock.Config{}, func(l *admin.Admin) error {
				leaks, failed := l.Leaks(cmd.Context())
				shown := make([]map[string]string, 0, len(leaks))
				for _, leak := range leaks {
					shown = append(shown, map[string]string{"node": leak.Node, "resource": leak.Resource, "holder": leak.Holder})
				}
				if err := printJSON(cmd.OutOrStdout(), shown); err != nil {
					return err
				}
				switch {
				case failed != nil:
					return withHint(failed, exitUnavailable, "these nodes were not checked")
				case len(leaks) > 0:
					return fmt.Errorf("%d locks never end", len(leaks))
				}
				return nil
			})
		},
	}
	g.register(cmd)
	return cmd
}

func newNodesSweep(e env) *cobra.Command {
	var g group
	cmd := &cobra.Command{
		Use:   "sweep",
		Short: "Delete the counters of resources from the nodes' memory; tokens go on rising",
		Long: `Delete the counters of resources from the nodes' memory, about 100 bytes for each resource that
was ever used. Gateways do it by themselves when there are over 100,000; tokens go on rising.`,
		Example: `  fencegate nodes sweep --redis r1:6379,r2:6379,r3:6379`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return g.withEpochs(cmd.Context(), e, lock.Config{}, func(l *admin.Admin) error { return sweep(cmd, l) })
		},
	}
	g.register(cmd)
	return cmd
}

func sweep(cmd *cobra.Command, l *admin.Admin) error {
	n, failed := l.Sweep(cmd.Context())
	if err := printJSON(cmd.OutOrStdout(), map[string]int{"deleted": n}); err != nil {
		return err
	}
	if failed != nil {
		return withHint(failed, exitUnavailable, "these nodes were not swept")
	}
	return nil
}
