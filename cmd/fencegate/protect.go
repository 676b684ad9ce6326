package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
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
	var d guardFlags
	var resource, under, perRow, stamp string
	var report, schema bool
	cmd := &cobra.Command{
		Use:   "protect TABLE (--resource RESOURCE | --under PREFIX | --per-row EXPRESSION)",
		Short: "Make PostgreSQL refuse writes to a table without a current grant",
		Long: `Make PostgreSQL refuse writes to a table without a current grant: to the table itself, its
partitions and its inheritance children. Protecting again replaces the rule; if the new one differs,
the command prints the old one.

With --schema the name is that of a schema, and every table in it is protected alike. New tables are
too, if the event triggers are installed (fencegate fence events install).

It waits for the table's writers, and for its readers only if the new rule has fewer guards than the
old one.` + triesHelp,
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
			return d.changeGuards(cmd, "protected", sql, args[0], orNull(resource), orNull(under), orNull(perRow), mode, orNull(stamp))
		},
	}
	f := cmd.Flags()
	f.StringVar(&resource, "resource", "", "the one resource whose grant a write needs")
	f.StringVar(&under, "under", "", "prefix: a write needs a grant of some resource below it")
	f.StringVar(&perRow, "per-row", "", "SQL expression on the table's columns: each row needs the grant of the resource that it names")
	f.StringVar(&stamp, "stamp", "", "column, bigint: filled with the token that wrote the row")
	f.BoolVar(&report, "report", false, "refuse nothing, and log what would be refused")
	f.BoolVar(&schema, "schema", false, "the name is that of a schema: protect every table in it")
	d.register(cmd)
	return cmd
}

func newUnprotect() *cobra.Command {
	var d guardFlags
	var schema bool
	cmd := &cobra.Command{
		Use:     "unprotect TABLE",
		Short:   "Let everybody with rights on a table write to it again",
		Long:    `Let everybody with rights on a table write to it again. It waits for the table's readers and writers.` + triesHelp,
		Example: `  fencegate unprotect public.orders`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			sql := unprotectTable
			if schema {
				sql = unprotectSchema
			}
			return d.changeGuards(cmd, "not protected any more", sql, args[0])
		},
	}
	cmd.Flags().BoolVar(&schema, "schema", false, "the name is that of a schema")
	d.register(cmd)
	return cmd
}

func newEnforce() *cobra.Command {
	var d guardFlags
	cmd := &cobra.Command{
		Use:   "enforce TABLE",
		Short: "Refuse from now on what --report has only reported",
		Long: `Refuse from now on what --report has only reported. It waits for the table's writers, not for its
readers.` + triesHelp,
		Example: `  fencegate fence enforce public.orders`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return d.changeGuards(cmd, "protected", enforceTable, args[0])
		},
	}
	d.register(cmd)
	return cmd
}

func newRefresh() *cobra.Command {
	var d guardFlags
	cmd := &cobra.Command{
		Use:   "refresh TABLE",
		Short: "Make a table's guards again, with the functions of the schema's version; doctor lists the tables",
		Long: `Make a table's guards again, with the same options and the functions of the schema's version. Older
guards go on working, so this is never urgent. It waits for the table's writers, not for its readers.` + triesHelp,
		Example: `  fencegate fence refresh public.orders --lock-timeout 1s`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return d.changeGuards(cmd, "protected", refreshTable, args[0], d.patience.Seconds())
		},
	}
	d.register(cmd)
	return cmd
}

func newEvents() *cobra.Command {
	var d databaseFlags
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
				return unknownIfBroken(err)
			})
		},
	}
	d.register(cmd, "a superuser, or what a managed service gives for one")
	return cmd
}

// A change of a table's guards locks the table, and others wait behind a lock that is waited for. So it gives its locks
// back and tries again, and by default sooner than PostgreSQL looks for a deadlock (deadlock_timeout, 1 s), which could
// end a transaction of the application.
const (
	changeTries    = 10
	changePatience = 500 * time.Millisecond

	triesHelp = `

Others queue behind a lock that it waits for. So it tries ten times, for at most --lock-timeout each.
Then it gives up, and changes nothing.`
)

// guardFlags is the database of a command that changes the guards of a table.
type guardFlags struct {
	databaseFlags
	patience time.Duration
}

func (d *guardFlags) register(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&d.patience, "lock-timeout", changePatience, "how long each of ten tries waits for others' transactions on the table")
	d.databaseFlags.register(cmd, asOwner)
}

// changeGuards runs a statement about the guards of the table or schema in args[0]. On success it prints now, the new
// state. PostgreSQL's notices go to standard error.
func (d *guardFlags) changeGuards(cmd *cobra.Command, now, sql string, args ...any) error {
	if d.patience <= 0 {
		return usage(fmt.Errorf("--lock-timeout %s: it must be above 0", d.patience))
	}
	var notices bytes.Buffer // of the last try
	d.notices = &notices
	err := d.with(cmd.Context(), func(pool *pgxpool.Pool) error {
		for try := 1; ; try++ {
			notices.Reset()
			err := d.tryChange(cmd.Context(), pool, sql, args)
			if !lockedOut(err) || try == changeTries || cmd.Context().Err() != nil {
				return unknownIfBroken(err)
			}
		}
	})
	_, _ = notices.WriteTo(cmd.ErrOrStderr())
	switch {
	case lockedOut(err):
		return withHint(err, exitFailed, "transactions hold the table; nothing was changed: try again, or with a longer --lock-timeout")
	case err != nil:
		return err
	}
	return d.changed(cmd, now, args[0])
}

// tryChange runs the statement in a transaction that waits no longer for a lock than d.patience.
func (d *guardFlags) tryChange(ctx context.Context, pool *pgxpool.Pool, sql string, args []any) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		ms := max(d.patience.Milliseconds(), 1)
		if _, err := tx.Exec(ctx, `SELECT set_config('lock_timeout', $1, true)`, strconv.FormatInt(ms, 10)+"ms"); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, sql, args...)
		return err
	})
}

// lockedOut reports whether a try ended because others hold a lock.
func lockedOut(err error) bool {
	refused, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (refused.Code == "55P03" || refused.Code == "40P01")
}

func orNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
