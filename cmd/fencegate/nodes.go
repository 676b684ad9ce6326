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

// nodeFlags holds the flags for the nodes and the key prefix.
type nodeFlags struct {
	redis redisFlags
	url   string
}

func (g *nodeFlags) register(cmd *cobra.Command) {
	g.redis.register(cmd.Flags(), "")
	cmd.Flags().StringVar(&g.url, "postgres-url", "", "the database whose Redis keys to use, as "+asGateway+" (better in FENCEGATE_POSTGRES_URL: it may hold a password)")
}

// with calls f with a Locker on the nodes.
func (g *nodeFlags) with(ctx context.Context, e env, cfg lock.Config, f func(*admin.Admin) error) error {
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
func (g *nodeFlags) withEpochs(ctx context.Context, e env, cfg lock.Config, f func(*admin.Admin) error) error {
	if g.url == "" {
		return g.with(ctx, e, cfg, f)
	}
	return (&databaseFlags{url: g.url}).with(ctx, func(pool *pgxpool.Pool) error {
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
	var g nodeFlags
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
	var g nodeFlags
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
	var g nodeFlags
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
	var g nodeFlags
	cmd := &cobra.Command{
		Use:   "sweep",
		Short: "Delete the counters of resources from the nodes' memory; tokens go on rising",
		Long: `Delete the counters of resources from the nodes' memory, about 100 bytes for each resource that
was ever used. Gateways do it by themselves when there are over 100,000; tokens go on rising.`,
		Example: `  fencegate nodes sweep --redis r1:6379,r2:6379,r3:6379`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return g.withEpochs(cmd.Context(), e, lock.Config{}, func(l *admin.Admin) error { return sweepNodes(cmd, l) })
		},
	}
	g.register(cmd)
	return cmd
}

func sweepNodes(cmd *cobra.Command, l *admin.Admin) error {
	n, failed := l.Sweep(cmd.Context())
	if err := printJSON(cmd.OutOrStdout(), map[string]int{"deleted": n}); err != nil {
		return err
	}
	if failed != nil {
		return withHint(failed, exitUnavailable, "these nodes were not swept")
	}
	return nil
}

func newNodesInit(e env) *cobra.Command {
	var g nodeFlags
	var above int64
	var maxTTL time.Duration
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Admit the nodes of a new group at once, or go on without PostgreSQL after the loss of a majority",
		Long: `Admit the nodes of a new group at once, as "fencegate serve --init" does. They have to be empty, and
keep --max-ttl as the longest TTL of the group. Without PostgreSQL (--redis-prefix names the group then)
a new group can't be distinguished from one that lost all its data: run this once.

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
			return (&databaseFlags{url: g.url}).with(cmd.Context(), func(pool *pgxpool.Pool) error {
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
	var g nodeFlags
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

// The arguments of nodes mode.
const (
	modeStrict     = "strict"
	modeBestEffort = "best-effort"
)

func newNodesMode(e env) *cobra.Command {
	var g nodeFlags
	cmd := &cobra.Command{
		Use:   "mode strict|best-effort",
		Short: "Mark the nodes of a group in use as strict, or for best effort",
		Long: `Mark the nodes of a group in use as strict, or for best effort.

A strict node that lost its data, or failed over, grants nothing until its quarantine is over, so
that one at a time holds a resource. A best-effort node is admitted at once: two may hold a
resource then, and the fence lets only the newest write. A new group needs no mark: it takes the
mode of the gateway that admits it.

The nodes grant nothing from the mark on, until gateways of that mode admit them: with
--redis-best-effort at once, without it after the quarantine of the group's longest TTL. Gateways
of the other mode are refused. Change the gateways' option before or after. Leases that are held
go on to their deadline, and are not renewed before the nodes are admitted.`,
		Example: `  fencegate nodes mode best-effort --redis r1:6379,r2:6379,r3:6379
  fencegate nodes mode strict --redis r1:6379,r2:6379,r3:6379`,
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{modeStrict, modeBestEffort},
		RunE: func(cmd *cobra.Command, args []string) error {
			return g.with(cmd.Context(), e, lock.Config{}, func(l *admin.Admin) error {
				if err := l.Mark(cmd.Context(), args[0] == modeBestEffort); err != nil {
					return withHint(fmt.Errorf("mark the nodes %s: %w", args[0], err), exitUnavailable, "run it again once all nodes answer; see `fencegate nodes status`")
				}
				_, err := fmt.Fprintf(cmd.ErrOrStderr(), "the nodes are marked %s; gateways of that mode admit them\n", args[0])
				return err
			})
		},
	}
	g.register(cmd)
	return cmd
}
