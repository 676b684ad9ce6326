package main

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
)

const (
	sqlAllowUnsealed    = `SELECT fence.allow_unsealed($1)`
	sqlDisallowUnsealed = `SELECT fence.disallow_unsealed($1)`
	sqlUnsealedPatterns = `SELECT pattern FROM fence.unsealed_patterns ORDER BY 1`
)

func newFenceAllow() *cobra.Command {
	var d database
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
	var d database
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
	var d database
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
