package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/pgtext"
)

const sqlHowManyProtected = `SELECT count(*) FROM fence.protected`

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

// database connects the commands below `fence` to PostgreSQL, and prints their answers.
type database struct {
	url     string
	json    bool
	notices io.Writer     // receives PostgreSQL's notices about a change; nil: discarded
	limit   time.Duration // of what changes nothing; 0: readLimit
}

func (d *database) register(cmd *cobra.Command, login string) {
	cmd.Flags().StringVar(&d.url, "postgres-url", "", "the database, as "+login+" (better in FENCEGATE_POSTGRES_URL: it may hold a password)")
	cmd.Flags().BoolVar(&d.json, "json", false, "print JSON")
}

const (
	asGateway  = "a login in the role fence_gateway"
	asOwner    = "the table's owner"
	asMigrator = "the login that migrates, or a superuser"
)

// checkPassfile refuses an address whose password file can't be read: pgx would connect without a password.
func checkPassfile(url string) error {
	if err := pgtext.CheckPassfile(url); err != nil {
		return usage(fmt.Errorf("--postgres-url %w", err))
	}
	return nil
}

const (
	connectLimit = 20 * time.Second // unless the address has a connect_timeout
	readLimit    = time.Minute
)

// read calls f with a pool for the database. f must end with its context, which bounds what changes nothing: a server that
// stands still would hold a cron job without end.
func (d *database) read(ctx context.Context, f func(context.Context, *pgxpool.Pool) error) error {
	limit := cmp.Or(d.limit, readLimit)
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := d.with(bounded, func(pool *pgxpool.Pool) error { return f(bounded, pool) })
	if err != nil && ctx.Err() == nil && bounded.Err() != nil {
		return withHint(fmt.Errorf("%w within %v: %w", errNoAnswer, limit, err), exitUnavailable, "is PostgreSQL overloaded, or stopped? nothing was changed")
	}
	return err
}

var errNoAnswer = errors.New("PostgreSQL has not answered")

// with calls f with a pool for the database.
func (d *database) with(ctx context.Context, f func(*pgxpool.Pool) error) error {
	if d.url == "" {
		return usage(errors.New("--postgres-url is missing (or FENCEGATE_POSTGRES_URL)"))
	}
	if err := checkPassfile(d.url); err != nil {
		return err
	}
	config, err := pgxpool.ParseConfig(d.url)
	if err != nil {
		return err
	}
	if d.notices != nil {
		config.ConnConfig.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { _, _ = fmt.Fprintln(d.notices, oneLine(n.Message)) }
	}
	pgfence.Configure(config)
	config.ConnConfig.ConnectTimeout = cmp.Or(config.ConnConfig.ConnectTimeout, connectLimit)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	return f(pool)
}

func (d *database) printFences(cmd *cobra.Command, records []fence.Record) error {
	if d.json {
		list := make([]fence.Record, len(records))
		for i, r := range records {
			list[i] = r.UTC()
		}
		return printJSON(cmd.OutOrStdout(), list)
	}
	w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "RESOURCE\tTOKEN\tHOLDER\tARMED AT\tSEALED\tENDED AT")
	for _, r := range records {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%t\t%s\n", r.Resource, r.Token, oneLine(r.Holder), r.ArmedAt.UTC().Format(time.RFC3339), r.Sealed, endedAt(r))
	}
	return w.Flush()
}

// endedAt returns when a grant ended, or a dash.
func endedAt(r fence.Record) string {
	if r.EndedAt == nil {
		return "-"
	}
	return r.EndedAt.UTC().Format(time.RFC3339)
}

func newFenceList() *cobra.Command {
	var d database
	var after string
	var limit int
	cmd := &cobra.Command{
		Use:   "ls [PREFIX]",
		Short: "List fences, in the order of their resources",
		Example: `  fencegate fence ls orders/
  fencegate fence ls orders/ --after orders/1999 --limit 100 --json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			prefix := ""
			if len(args) == 1 {
				prefix = args[0]
			}
			if limit < 1 {
				return usage(fmt.Errorf("--limit %d: it must be 1 or more", limit))
			}
			return d.read(cmd.Context(), func(ctx context.Context, pool *pgxpool.Pool) error {
				records, err := pgfence.New(pool).List(ctx, prefix, after, limit)
				if err != nil {
					return err
				}
				return d.printFences(cmd, records)
			})
		},
	}
	d.register(cmd, asGateway)
	cmd.Flags().StringVar(&after, "after", "", "begin after this resource: the last one of the page before")
	cmd.Flags().IntVar(&limit, "limit", 1000, "list at most that many")
	return cmd
}

func newFenceShow() *cobra.Command {
	var d database
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
				return d.printFences(cmd, []fence.Record{record})
			})
		},
	}
	d.register(cmd, asGateway)
	return cmd
}

type uncovered struct {
	Relation string `json:"relation"`
	Reason   string `json:"reason"`
}

func newFenceUncovered() *cobra.Command {
	var d database
	cmd := &cobra.Command{
		Use:     "uncovered",
		Short:   "List gaps in what is protected; the exit code is 1 if there is one",
		Example: `  fencegate fence uncovered || echo "somebody took a guard off"`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return d.read(cmd.Context(), func(ctx context.Context, pool *pgxpool.Pool) error {
				rows, _ := pool.Query(ctx, sqlUncovered) // rows returns the error again
				list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[uncovered])
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
					err = pool.QueryRow(cmd.Context(), sqlHowManyProtected).Scan(&tables)
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
