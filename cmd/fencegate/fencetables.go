package main

import (
	"context"
	"fmt"
	"strconv"
	"text/tabwriter"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
)

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
	var d database
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
				return d.printTables(cmd, tables)
			})
		},
	}
	d.register(cmd, "any login of it")
	return cmd
}

func (d *database) printTables(cmd *cobra.Command, tables []protectedTable) error {
	if d.json {
		return printJSON(cmd.OutOrStdout(), append([]protectedTable{}, tables...))
	}
	w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "TABLE\tNEEDS\tMODE\tCOMPLETE\tREFUSED\tWOULD REFUSE")
	for _, t := range tables {
		fmt.Fprintf(w, "%s\t%s\t%s\t%t\t%s\t%s\n", oneLine(t.Table), oneLine(t.Needs), t.Mode, t.Complete, countOr(t.Refused), countOr(t.WouldRefuse))
	}
	return w.Flush()
}

// countOr returns a count, or a dash if it is unknown.
func countOr(n *int64) string {
	if n == nil {
		return "-"
	}
	return strconv.FormatInt(*n, 10)
}
