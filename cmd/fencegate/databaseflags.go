package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/pgtext"
)

// databaseFlags connects the commands below `fence` to PostgreSQL, and prints their answers.
type databaseFlags struct {
	url     string
	json    bool
	notices io.Writer     // receives PostgreSQL's notices about a change; nil: discarded
	limit   time.Duration // of what changes nothing; 0: readLimit
}

func (d *databaseFlags) register(cmd *cobra.Command, login string) {
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
func (d *databaseFlags) read(ctx context.Context, f func(context.Context, *pgxpool.Pool) error) error {
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
func (d *databaseFlags) with(ctx context.Context, f func(*pgxpool.Pool) error) error {
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

// change runs a statement about what args[0] names. On success it prints now, the new state. PostgreSQL's notices go to
// standard error.
func (d *databaseFlags) change(cmd *cobra.Command, now, sql string, args ...any) error {
	d.notices = cmd.ErrOrStderr()
	err := d.with(cmd.Context(), func(pool *pgxpool.Pool) error {
		_, err := pool.Exec(cmd.Context(), sql, args...)
		return unknownIfBroken(err)
	})
	if err != nil {
		return err
	}
	return d.changed(cmd, now, args[0])
}

// changed prints the new state of what a command changed.
func (d *databaseFlags) changed(cmd *cobra.Command, now string, name any) error {
	if d.json {
		return printJSON(cmd.OutOrStdout(), map[string]any{"name": name, "state": now})
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s: %s\n", oneLine(fmt.Sprint(name)), now)
	return err
}
