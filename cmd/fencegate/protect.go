package main

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"
)

// protectTable and unprotectTable take the table's name as PostgreSQL reads it.
const (
	protectTable   = `SELECT fence.protect($1::regclass, resource => $2, under => $3)`
	unprotectTable = `SELECT fence.unprotect($1::regclass)`
)

func newProtect() *cobra.Command {
	var url, resource, under string
	cmd := &cobra.Command{
		Use:   "protect TABLE (--resource RESOURCE | --under PREFIX)",
		Short: "Make PostgreSQL refuse writes to a table without a current grant",
		Example: `  fencegate protect public.orders --under orders/
  fencegate protect reports --resource reports/all`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if (resource == "") == (under == "") {
				return usage(errors.New("give exactly one of --resource and --under"))
			}
			return onTable(cmd.Context(), url, protectTable, args[0], orNull(resource), orNull(under))
		},
	}
	cmd.Flags().StringVar(&resource, "resource", "", "the one resource whose grant a write needs")
	cmd.Flags().StringVar(&under, "under", "", "prefix: a write needs a grant of some resource below it")
	tableFlags(cmd, &url)
	return cmd
}

func newUnprotect() *cobra.Command {
	var url string
	cmd := &cobra.Command{
		Use:     "unprotect TABLE",
		Short:   "Let everybody with rights on a table write to it again",
		Example: `  fencegate unprotect public.orders`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return onTable(cmd.Context(), url, unprotectTable, args[0])
		},
	}
	tableFlags(cmd, &url)
	return cmd
}

func tableFlags(cmd *cobra.Command, url *string) {
	cmd.Flags().StringVar(url, "postgres-url", "", "the database, as the table's owner (better in FENCEGATE_POSTGRES_URL: it may hold a password)")
}

func orNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func onTable(ctx context.Context, url, sql string, args ...any) error {
	if url == "" {
		return usage(errors.New("--postgres-url is missing (or FENCEGATE_POSTGRES_URL)"))
	}
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	_, err = conn.Exec(ctx, sql, args...)
	return err
}
