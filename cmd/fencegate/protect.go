package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
)

// The functions take the name of a table or a schema as PostgreSQL parses it.
const (
	protectTable    = `SELECT fence.protect($1::regclass, resource => $2, under => $3, per_row => $4, mode => $5, stamp => $6)`
	protectSchema   = `SELECT fence.protect_schema($1::regnamespace, resource => $2, under => $3, per_row => $4, mode => $5, stamp => $6)`
	unprotectTable  = `SELECT fence.unprotect($1::regclass)`
	unprotectSchema = `SELECT fence.unprotect_schema($1::regnamespace)`
	enforceTable    = `SELECT fence.enforce($1::regclass)`
	refreshTable    = `SELECT fence.refresh($1::regclass, make_interval(secs => $2))`

	installEventTriggers   = `SELECT fence.install_event_triggers()`
	uninstallEventTriggers = `SELECT fence.uninstall_event_triggers()`
)

func newProtect() *cobra.Command {
	var d database
	var resource, under, perRow, stamp string
	var report, schema bool
	cmd := &cobra.Command{
		Use:   "protect TABLE (--resource RESOURCE | --under PREFIX | --per-row EXPRESSION)",
		Short: "Make PostgreSQL refuse writes to a table without a current grant",
		Long: `Make PostgreSQL refuse writes to a table without a current grant: to the table itself, its
partitions and its inheritance children. Protecting again replaces the rule; if the new one differs,
the command prints the old one.

With --schema the name is that of a schema, and every table in it is protected alike. New tables are
too, if the event triggers are installed (fencegate fence events install).`,
		Example: `  fencegate protect public.orders --under orders/
  fencegate protect reports --resource reports/all
  fencegate protect public.orders --per-row "'orders/' || id" --stamp token
  fencegate protect app --schema --under app/ --report`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			given := 0
			for _, s := range []string{resource, under, perRow} {
				if s != "" {
					given++
				}
			}
			if given != 1 {
				return usage(errors.New("give exactly one of --resource, --under and --per-row"))
			}
			sql, mode := protectTable, "enforce"
			if schema {
				sql = protectSchema
			}
			if report {
				mode = "report"
			}
			return d.change(cmd, "protected", sql, args[0], orNull(resource), orNull(under), orNull(perRow), mode, orNull(stamp))
		},
	}
	f := cmd.Flags()
	f.StringVar(&resource, "resource", "", "the one resource whose grant a write needs")
	f.StringVar(&under, "under", "", "prefix: a write needs a grant of some resource below it")
	f.StringVar(&perRow, "per-row", "", "SQL expression on the table's columns: each row needs the grant of the resource that it names")
	f.StringVar(&stamp, "stamp", "", "column, bigint: filled with the token that wrote the row")
	f.BoolVar(&report, "report", false, "refuse nothing, and log what would be refused")
	f.BoolVar(&schema, "schema", false, "the name is that of a schema: protect every table in it")
	d.register(cmd, asOwner)
	return cmd
}

func newUnprotect() *cobra.Command {
	var d database
	var schema bool
	cmd := &cobra.Command{
		Use:     "unprotect TABLE",
		Short:   "Let everybody with rights on a table write to it again",
		Example: `  fencegate unprotect public.orders`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			sql := unprotectTable
			if schema {
				sql = unprotectSchema
			}
			return d.change(cmd, "not protected any more", sql, args[0])
		},
	}
	cmd.Flags().BoolVar(&schema, "schema", false, "the name is that of a schema")
	d.register(cmd, asOwner)
	return cmd
}

func newEnforce() *cobra.Command {
	var d database
	cmd := &cobra.Command{
		Use:     "enforce TABLE",
		Short:   "Refuse from now on what --report has only reported",
		Example: `  fencegate fence enforce public.orders`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return d.change(cmd, "protected", enforceTable, args[0])
		},
	}
	d.register(cmd, asOwner)
	return cmd
}

func newRefresh() *cobra.Command {
	var d database
	var patience time.Duration
	cmd := &cobra.Command{
		Use:   "refresh TABLE",
		Short: "Make a table's guards anew, with the functions of the schema's version; doctor lists the tables",
		Long: `Make a table's guards anew, with the same options and the functions of the schema's version. Older
guards go on working, so this is never urgent. It locks the table for a moment. It gives up, and
changes nothing, if current writers take longer than --lock-timeout.`,
		Example: `  fencegate fence refresh public.orders --lock-timeout 1s`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if patience <= 0 {
				return usage(fmt.Errorf("--lock-timeout %s: it must be above 0", patience))
			}
			err := d.change(cmd, "protected", refreshTable, args[0], patience.Seconds())
			if refused, ok := errors.AsType[*pgconn.PgError](err); ok && refused.Code == "55P03" {
				err = withHint(err, exitFailed, "writers hold the table; nothing was changed: try again, or with a longer --lock-timeout")
			}
			return err
		},
	}
	cmd.Flags().DurationVar(&patience, "lock-timeout", 3*time.Second, "how long to wait for writers of the table")
	d.register(cmd, asOwner)
	return cmd
}

func newEvents() *cobra.Command {
	var d database
	cmd := &cobra.Command{
		Use:       "events install|uninstall",
		Short:     "Install the event triggers that keep guards on, also on new partitions and tables",
		Example:   `  fencegate fence events install --postgres-url postgres://postgres@db/app`,
		ValidArgs: []string{"install", "uninstall"},
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		RunE: func(cmd *cobra.Command, args []string) error {
			sql := installEventTriggers
			if args[0] == "uninstall" {
				sql = uninstallEventTriggers
			}
			return d.with(cmd.Context(), func(pool *pgxpool.Pool) error {
				_, err := pool.Exec(cmd.Context(), sql)
				return broken(err)
			})
		},
	}
	d.register(cmd, "a superuser, or what a managed service gives for one")
	return cmd
}

// change runs a statement about the table or schema in args[0]. On success it prints now, the new state. PostgreSQL's
// notices go to standard error.
func (d *database) change(cmd *cobra.Command, now, sql string, args ...any) error {
	d.notices = cmd.ErrOrStderr()
	return d.with(cmd.Context(), func(pool *pgxpool.Pool) error {
		if _, err := pool.Exec(cmd.Context(), sql, args...); err != nil {
			return broken(err)
		}
		if d.json {
			return printJSON(cmd.OutOrStdout(), map[string]any{"name": args[0], "state": now})
		}
		_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s: %s\n", oneLine(fmt.Sprint(args[0])), now)
		return err
	})
}

func orNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
