package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/fencegate/fencegate/fence/pgfence"
)

func newFenceRetire() *cobra.Command {
	var d database
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
