package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/fencegate/fencegate/fence/pgfence"
)

const sqlNewGroup = `SELECT id::text, coalesce(before::text, ''), database, raised, unsealed FROM fence.new_group()`

// newGroup is the result of new-group.
type newGroup struct {
	Database  string      `json:"database"`
	KeyPrefix string      `json:"key_prefix"`
	Before    string      `json:"key_prefix_before"`
	Raised    int64       `json:"raised"`
	Unsealed  int64       `json:"unsealed"`
	Undrained []undrained `json:"undrained"`
}

func newNewGroup() *cobra.Command {
	var d database
	var yes bool
	cmd := &cobra.Command{
		Use:   "new-group --yes",
		Short: "In a copied database: give it Redis keys of its own, and end the grants that it was copied with",
		Long: `Give a copied database keys of its own on the Redis nodes, so that its gateways and those of the
first database don't share keys. Until then a copy (CREATE DATABASE … TEMPLATE, a dump that was
restored beside the first one, a cloned disk) has the first one's keys, and its gateways grant no
leases.

It raises every fence of this database, as invalidate-all does: grants from before the copy are
refused here. It changes neither the first database nor its keys. Restart the gateways and programs
of this database. They grant leases once the nodes' quarantine, the longest TTL (--max-ttl), is
over.

If this database replaces the first one after a failover or a restore, run invalidate-all instead.`,
		Example: `  fencegate fence new-group --yes --postgres-url postgres://admin@db/app_copy`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return d.with(cmd.Context(), func(pool *pgxpool.Pool) error {
				if !yes {
					return usage(fmt.Errorf("it ends every lease of the database %s, which should be a copy: confirm it with --yes", pool.Config().ConnConfig.Database))
				}
				done, err := regroup(cmd.Context(), pool)
				if err != nil {
					return err
				}
				if d.json {
					err = printJSON(cmd.OutOrStdout(), done)
				} else {
					_, err = fmt.Fprint(cmd.OutOrStdout(), done.text())
				}
				return errors.Join(err, left(done.Undrained))
			})
		},
	}
	d.register(cmd, asMigrator)
	cmd.Flags().BoolVar(&yes, "yes", false, "confirm: this database is a copy, and every lease of it ends")
	markTypedOnly(cmd, "yes") // no variable may end all leases
	return cmd
}

func regroup(ctx context.Context, pool *pgxpool.Pool) (newGroup, error) {
	var done newGroup
	var id, before string
	if err := pool.QueryRow(ctx, sqlNewGroup).Scan(&id, &before, &done.Database, &done.Raised, &done.Unsealed); err != nil {
		return done, pgfence.Translate(broken(err))
	}
	done.KeyPrefix = pgfence.KeyPrefixOf(id)
	if before != "" {
		done.Before = pgfence.KeyPrefixOf(before)
	}
	var err error
	if done.Undrained, err = drainInvalidated(ctx, pool); err != nil {
		err = withHint(fmt.Errorf("%s writers under earlier grants may not have ended: %w", done.text(), err), exitOf(err), drainOn)
	}
	return done, err
}

func (n newGroup) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "the Redis keys of the database %s begin with %s from now on; start its gateways and programs again\n", n.Database, n.KeyPrefix)
	fmt.Fprintf(&b, "%d fence(s) raised: every earlier grant is refused here\n", n.Raised)
	tellUnsealed(&b, n.Unsealed)
	tellUndrained(&b, n.Undrained)
	return b.String()
}
