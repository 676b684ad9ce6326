package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
)

const sqlCountProtected = `SELECT count(*) FROM fence.protected`

const sqlUncovered = `SELECT relation::text, reason FROM fence.uncovered ORDER BY 1, 2`

func newFence(_ env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "fence",
		Short: "Look at, raise and set up the fences in PostgreSQL, without a gateway",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newFenceList(), newFenceShow(), newFenceTables(), newFenceRetire(), newEnforce(), newRefresh(),
		newFenceUncovered(), newEvents(), newInvalidateAll(), newNewGroup(),
		newFenceAllow(), newFenceDisallow(), newFenceAllowed(), newFenceSource())
	return cmd
}

func printFences(w io.Writer, asJSON bool, records []fence.Record) error {
	for i, r := range records {
		records[i] = r.UTC()
	}
	return printList(w, asJSON, records, "RESOURCE\tTOKEN\tHOLDER\tARMED AT\tSEALED\tENDED AT", func(r fence.Record) string {
		return fmt.Sprintf("%s\t%s\t%s\t%s\t%t\t%s", r.Resource, r.Token, oneLine(r.Holder), r.ArmedAt.Format(time.RFC3339), r.Sealed, endedAt(r))
	})
}

// endedAt returns when a grant ended, or a dash.
func endedAt(r fence.Record) string {
	if r.EndedAt == nil {
		return "-"
	}
	return r.EndedAt.Format(time.RFC3339)
}

func newFenceList() *cobra.Command {
	var d databaseFlags
	var after string
	var limit int
	cmd := &cobra.Command{
		Use:   "ls [PREFIX]",
		Short: "List fences, in the order of their resources",
		Example: `  fencegate fence ls orders/
  fencegate fence ls orders/ --after orders/1999 --limit 100 --json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if limit < 1 {
				return usage(fmt.Errorf("--limit %d: it must be 1 or more", limit))
			}
			return d.read(cmd.Context(), func(ctx context.Context, pool *pgxpool.Pool) error {
				records, err := pgfence.New(pool).List(ctx, argument(args, 0), after, limit)
				if err != nil {
					return err
				}
				return printFences(cmd.OutOrStdout(), d.json, records)
			})
		},
	}
	d.register(cmd, asGateway)
	cmd.Flags().StringVar(&after, "after", "", "begin after this resource: the last one of the page before")
	cmd.Flags().IntVar(&limit, "limit", 1000, "list at most that many")
	return cmd
}

func newFenceShow() *cobra.Command {
	var d databaseFlags
	cmd := &cobra.Command{
		Use:     "show RESOURCE",
		Short:   "Show the fence of one resource",
		Example: `  fencegate fence show orders/1001 --json`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return d.read(cmd.Context(), func(ctx context.Context, pool *pgxpool.Pool) error {
				record, err := pgfence.New(pool).Inspect(ctx, args[0])
				if err != nil {
					return err
				}
				if d.json {
					return printJSON(cmd.OutOrStdout(), record.UTC())
				}
				return printFences(cmd.OutOrStdout(), d.json, []fence.Record{record})
			})
		},
	}
	d.register(cmd, asGateway)
	return cmd
}

type coverageGap struct {
	Relation string `json:"relation"`
	Reason   string `json:"reason"`
}

func newFenceUncovered() *cobra.Command {
	var d databaseFlags
	cmd := &cobra.Command{
		Use:     "uncovered",
		Short:   "List gaps in what is protected; the exit code is 1 if there is one",
		Example: `  fencegate fence uncovered || echo "somebody took a guard off"`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return d.read(cmd.Context(), func(ctx context.Context, pool *pgxpool.Pool) error {
				rows, _ := pool.Query(ctx, sqlUncovered) // rows returns the error again
				list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[coverageGap])
				if err != nil {
					return err
				}
				if d.json {
					err = printJSON(cmd.OutOrStdout(), list)
				} else {
					for _, u := range list {
						fmt.Fprintf(cmd.OutOrStdout(), "%s: %s\n", oneLine(u.Relation), oneLine(u.Reason))
					}
				}
				switch {
				case err != nil || d.json && len(list) == 0:
				case len(list) == 0:
					var tables int
					err = pool.QueryRow(cmd.Context(), sqlCountProtected).Scan(&tables)
					fmt.Fprintf(cmd.ErrOrStderr(), "no gap; %d table(s) are protected, and a table that never was is not looked at\n", tables)
				default:
					err = withHint(fmt.Errorf("%d finding(s): what they name can be written without a grant", len(list)), exitFailed,
						"fencegate protect TABLE …, or unprotect it where that is meant")
				}
				return err
			})
		},
	}
	d.register(cmd, "any login")
	return cmd
}

// A table may have several guards. They share its counter.
const sqlTables = `SELECT relation::text AS table,
       coalesce(min(per_row), min(resource), min(under) || '*') AS needs, min(mode) AS mode, bool_and(complete) AS complete,
       max(refused) AS refused, max(would_refuse) AS would_refuse
  FROM fence.protected GROUP BY relation ORDER BY coalesce(max(refused), max(would_refuse), 0) DESC, 1`

// protectedTable is a table with a guard, and the number of its refusals since it was protected; nil: not counted.
type protectedTable struct {
	Table       string `json:"table"`
	Needs       string `json:"needs"` // a resource, a prefix and "*", or the per-row expression
	Mode        string `json:"mode"`
	Complete    bool   `json:"complete"`
	Refused     *int64 `json:"refused"`
	WouldRefuse *int64 `json:"would_refuse"`
}

func newFenceTables() *cobra.Command {
	var d databaseFlags
	cmd := &cobra.Command{
		Use:   "tables",
		Short: "List protected tables, and how many writes each has refused",
		Long: `List protected tables, and how many writes each has refused since it was protected, on any
connection; those that refuse most come first. In report mode: how many it would have refused.`,
		Example: `  fencegate fence tables --json`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return d.read(cmd.Context(), func(ctx context.Context, pool *pgxpool.Pool) error {
				rows, _ := pool.Query(ctx, sqlTables)
				tables, err := pgx.CollectRows(rows, pgx.RowToStructByPos[protectedTable])
				if err != nil {
					return err
				}
				return printList(cmd.OutOrStdout(), d.json, tables, "TABLE\tNEEDS\tMODE\tCOMPLETE\tREFUSED\tWOULD REFUSE", func(t protectedTable) string {
					return fmt.Sprintf("%s\t%s\t%s\t%t\t%s\t%s", oneLine(t.Table), oneLine(t.Needs), t.Mode, t.Complete, countOr(t.Refused), countOr(t.WouldRefuse))
				})
			})
		},
	}
	d.register(cmd, "any login of it")
	return cmd
}

// countOr returns a count, or a dash if it is unknown.
func countOr(n *int64) string {
	if n == nil {
		return "-"
	}
	return strconv.FormatInt(*n, 10)
}

const (
	sqlAllowUnsealed    = `SELECT fence.allow_unsealed($1)`
	sqlDisallowUnsealed = `SELECT fence.disallow_unsealed($1)`
	sqlUnsealedPatterns = `SELECT pattern FROM fence.unsealed_patterns ORDER BY 1`
)

func newFenceAllow() *cobra.Command {
	var d databaseFlags
	var unsealed bool
	cmd := &cobra.Command{
		Use:   "allow PATTERN --unsealed",
		Short: "Let resources take bare tokens, which come from a lock of your own",
		Long: `Let the resources that fit a pattern take bare tokens, without a seal, which come from a lock of
your own: a sequence, an etcd revision, a DynamoDB version. '*' stands for any characters.

Any login in fence_writer can then take over such a resource with a number of its choice. A token
with a seal needs no pattern: CALL fence.take(...), see docs/own-lock.md.`,
		Example: `  fencegate fence allow 'jobs/*' --unsealed --postgres-url postgres://admin@db/app`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !unsealed {
				return usage(errors.New("every writer can make up a bare token: say so with --unsealed"))
			}
			return d.change(cmd, "takes unsealed tokens", sqlAllowUnsealed, args[0])
		},
	}
	d.register(cmd, asMigrator)
	cmd.Flags().BoolVar(&unsealed, "unsealed", false, "confirm: bare tokens, which every writer can make up")
	markTypedOnly(cmd, "unsealed")
	return cmd
}

func newFenceDisallow() *cobra.Command {
	var d databaseFlags
	cmd := &cobra.Command{
		Use:     "disallow PATTERN",
		Short:   "Take such a pattern away: bare tokens of its resources are refused",
		Example: `  fencegate fence disallow 'jobs/*'`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return d.change(cmd, "takes no unsealed tokens any more", sqlDisallowUnsealed, args[0])
		},
	}
	d.register(cmd, asMigrator)
	return cmd
}

func newFenceAllowed() *cobra.Command {
	var d databaseFlags
	cmd := &cobra.Command{
		Use:     "allowed",
		Short:   "List the patterns whose resources take bare tokens",
		Example: `  fencegate fence allowed`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return d.with(cmd.Context(), func(pool *pgxpool.Pool) error {
				rows, _ := pool.Query(cmd.Context(), sqlUnsealedPatterns) // rows returns the error again
				list, err := pgx.CollectRows(rows, pgx.RowTo[string])
				if err != nil {
					return err
				}
				if d.json {
					return printJSON(cmd.OutOrStdout(), list)
				}
				for _, pattern := range list {
					fmt.Fprintln(cmd.OutOrStdout(), oneLine(pattern))
				}
				return nil
			})
		},
	}
	d.register(cmd, asGateway)
	return cmd
}

const (
	sqlShowSource = `SELECT coalesce(s.source, ''), (SELECT count(*) FROM fence.leases l WHERE l.ends_at > clock_timestamp())
		FROM fence.lease_source s`
	sqlChangeSource = `SELECT fence.change_source($1, $2)`
)

// leaseSource is a database's lease source, and how many of PostgreSQL's leases are held or were ended.
type leaseSource struct {
	Source string `json:"source"`
	Live   int64  `json:"held"`
	Ended  int64  `json:"ended"`
}

func newFenceSource() *cobra.Command {
	var d databaseFlags
	var yes, end bool
	cmd := &cobra.Command{
		Use:   "source [redis|postgres|etcd|zookeeper|kubernetes|other]",
		Short: "Show where the leases of a database come from, or change it",
		Long: `Show where the leases of a database come from, or change it. The first gateway, or the first lease,
records it; a gateway or a program of another kind then grants nothing. etcd, zookeeper, kubernetes
and other are sources of gateways written in Go.

To change it, stop every gateway and every program that takes leases, and wait until the leases
have ended; then confirm with --yes. Leases of PostgreSQL that are still held refuse it, unless
--end-leases ends them, as releases would. Leases of Redis can't be seen from here.`,
		Example: `  fencegate fence source
  fencegate fence source postgres --yes --postgres-url postgres://admin@db/app`,
		Args:      cobra.MatchAll(cobra.MaximumNArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{"redis", "postgres", "etcd", "zookeeper", "kubernetes", "other"},
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) == 0 && (yes || end):
				return usage(errors.New("--yes and --end-leases change the source: name the new one"))
			case len(args) == 1 && !yes:
				return usage(errors.New("a gateway of the other source could give a resource to a second holder: stop all of them, and confirm it with --yes"))
			}
			return d.with(cmd.Context(), func(pool *pgxpool.Pool) error {
				var s leaseSource
				if len(args) == 1 {
					if err := pool.QueryRow(cmd.Context(), sqlChangeSource, args[0], end).Scan(&s.Ended); err != nil {
						return unknownIfBroken(err)
					}
				}
				if err := pool.QueryRow(cmd.Context(), sqlShowSource).Scan(&s.Source, &s.Live); err != nil {
					return err
				}
				if d.json {
					return printJSON(cmd.OutOrStdout(), s)
				}
				_, err := fmt.Fprint(cmd.OutOrStdout(), s.text())
				return err
			})
		},
	}
	d.register(cmd, asMigrator)
	cmd.Flags().BoolVar(&yes, "yes", false, "confirm: every gateway and every program that takes leases is stopped")
	cmd.Flags().BoolVar(&end, "end-leases", false, "end the leases of PostgreSQL that are held")
	markTypedOnly(cmd, "yes")
	markTypedOnly(cmd, "end-leases")
	return cmd
}

func (s leaseSource) text() string {
	text := "leases come from " + s.Source
	if s.Source == "" {
		text = "nobody has taken a lease yet: the first gateway or lease decides where they come from"
	}
	if s.Live > 0 {
		text += fmt.Sprintf("; %d of PostgreSQL's are held", s.Live)
	}
	if s.Ended > 0 {
		text += fmt.Sprintf("; %d were ended", s.Ended)
	}
	return text + "\n"
}

func newFenceRetire() *cobra.Command {
	var d databaseFlags
	var unused time.Duration
	cmd := &cobra.Command{
		Use:   "retire --unused DURATION",
		Short: "Delete the rows of fences that were unused for long; their stale tokens are still refused",
		Long: `Delete the rows of fences whose grant ended longer ago than --unused, by a release or by
invalidate-all. Their stale tokens are refused for ever: the greatest of them is kept as a floor
that many names share, and tokens that are issued later lie above it.

So every source of tokens for this database must be able to go above a recorded token, as package
lock and gateways do. Names that take unsealed tokens (fence.unsealed) do not retire.

A grant that was not released does not retire and is counted as unended: serve --retire-after takes
its lease, if nobody holds it, and so ends it.`,
		Example: `  fencegate fence retire --unused 720h --postgres-url postgres://gateway@db/app`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if unused <= 0 {
				return usage(errors.New("--unused is missing, or not above 0: for how long a fence was not used"))
			}
			var all struct {
				Retired int `json:"retired"`
				Unended int `json:"unended"`
			}
			err := d.with(cmd.Context(), func(pool *pgxpool.Pool) error {
				for after := ""; ; {
					step, err := pgfence.New(pool).Retire(cmd.Context(), unused, after)
					all.Retired += step.Fences
					all.Unended += len(step.Unended)
					if after = step.Next; err != nil || after == "" {
						return err
					}
				}
			})
			if err != nil {
				return fmt.Errorf("%d fence(s) were retired, then: %w", all.Retired, err)
			}
			if d.json {
				return printJSON(cmd.OutOrStdout(), all)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%d fence(s) retired, %d left with a grant that has not ended\n", all.Retired, all.Unended)
			return err
		},
	}
	d.register(cmd, asGateway)
	cmd.Flags().DurationVar(&unused, "unused", 0, "how long ago the grant ended, at least")
	return cmd
}
