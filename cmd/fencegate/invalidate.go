package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/fencegate/fencegate/fence/pgfence"
)

const (
	sqlInvalidate = `SELECT id::text, identity, raised, unsealed, already FROM fence.invalidate_all($1)`

	// It runs in its own transaction: it looks for writers that passed a check before the raise was committed.
	sqlDrainInvalidated = `SELECT resource, held_by FROM fence.drain_invalidated()`
)

// invalidation is the result of invalidate-all.
type invalidation struct {
	ID        string            `json:"id"`
	Identity  string            `json:"identity"`
	Raised    int64             `json:"raised"`
	Unsealed  int64             `json:"unsealed"`
	Already   bool              `json:"already"`
	Undrained []remainingWriter `json:"undrained"`
}

type remainingWriter struct {
	Resource string `json:"resource"`
	HeldBy   string `json:"held_by"`
}

func newInvalidateAll() *cobra.Command {
	var d databaseFlags
	var yes, again bool
	cmd := &cobra.Command{
		Use:   "invalidate-all --yes",
		Short: "After a failover or a restore: raise every fence, so that every earlier grant is refused",
		Long: `Raise every fence by a large step, to seals that nobody knows, so that every earlier grant is
refused. Run it after an asynchronous standby was promoted or a backup was restored: PostgreSQL may
have forgotten fences then. Gateways notice that, grant no leases, and say so in /readyz until this
has run. Every holder has to acquire again. Do not run it in a copy beside the first database: there
it would end the first one's leases; see new-group.

It runs once for each identity of the server (system id, timeline, schema). A server that was reset
to an older copy of itself keeps its identity: --again makes it run once more.`,
		Example: `  fencegate fence invalidate-all --yes --postgres-url postgres://admin@db/app`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !yes {
				return usage(errors.New("it ends every lease: confirm it with --yes"))
			}
			return d.with(cmd.Context(), func(pool *pgxpool.Pool) error {
				done, err := invalidate(cmd.Context(), pool, again)
				if err != nil {
					return err
				}
				if d.json {
					err = printJSON(cmd.OutOrStdout(), done)
				} else {
					_, err = fmt.Fprint(cmd.OutOrStdout(), done.text())
				}
				if err == nil {
					err = remainingWritersError(done.Undrained)
				}
				return err
			})
		},
	}
	d.register(cmd, asMigrator)
	cmd.Flags().BoolVar(&yes, "yes", false, "confirm: this ends every lease")
	cmd.Flags().BoolVar(&again, "again", false, "raise although it ran for this identity before")
	markTypedOnly(cmd, "yes") // no variable may end all leases
	markTypedOnly(cmd, "again")
	return cmd
}

func invalidate(ctx context.Context, pool *pgxpool.Pool, again bool) (invalidation, error) {
	done := invalidation{Undrained: []remainingWriter{}}
	err := pool.QueryRow(ctx, sqlInvalidate, again).Scan(&done.ID, &done.Identity, &done.Raised, &done.Unsealed, &done.Already)
	if err != nil {
		return done, pgfence.Translate(unknownIfBroken(err))
	}
	if done.Undrained, err = drainInvalidated(ctx, pool); err != nil {
		err = withHint(fmt.Errorf("%s writers under earlier grants may not have ended: %w", done.text(), err), exitOf(err), "run it again: it continues draining")
	}
	return done, err
}

// drainInvalidated waits for the writers that passed a check
// before all fences were raised, and returns those that remain.
func drainInvalidated(ctx context.Context, pool *pgxpool.Pool) ([]remainingWriter, error) {
	rows, _ := pool.Query(ctx, sqlDrainInvalidated) // rows returns the error again
	left, err := pgx.CollectRows(rows, pgx.RowToStructByPos[remainingWriter])
	return append([]remainingWriter{}, left...), unknownIfBroken(err)
}

// remainingWritersError returns an error if such writers remain.
func remainingWritersError(all []remainingWriter) error {
	if len(all) == 0 {
		return nil
	}
	return withHint(fmt.Errorf("%d resource(s) still have writers under earlier grants", len(all)), exitUnavailable, drainHint)
}

// drainHint is the hint for continuing to drain, after invalidate-all
// and new-group alike. The command then raises nothing.
const drainHint = "end what holds them, then run fencegate fence invalidate-all --yes: it continues draining"

func writeUnsealed(w io.Writer, n int64) {
	if n > 0 {
		_, _ = fmt.Fprintf(w, "%d of them take unsealed tokens and were raised by one only: make sure that their issuer continues above\n", n)
	}
}

func writeRemaining(w io.Writer, all []remainingWriter) {
	for _, u := range all {
		_, _ = fmt.Fprintf(w, "%s is still held by %s\n", u.Resource, u.HeldBy)
	}
}

func (i invalidation) text() string {
	var b strings.Builder
	if i.Already {
		fmt.Fprintf(&b, "every fence was raised before for %s; nothing to raise (--again does it once more)\n", i.Identity)
	} else {
		fmt.Fprintf(&b, "%d fence(s) raised for %s: every earlier grant is refused\n", i.Raised, i.Identity)
	}
	writeUnsealed(&b, i.Unsealed)
	writeRemaining(&b, i.Undrained)
	return b.String()
}

const sqlNewGroup = `SELECT id::text, coalesce(before::text, ''), database, raised, unsealed FROM fence.new_group()`

// newGroup is the result of new-group.
type newGroup struct {
	Database  string            `json:"database"`
	KeyPrefix string            `json:"key_prefix"`
	Before    string            `json:"key_prefix_before"`
	Raised    int64             `json:"raised"`
	Unsealed  int64             `json:"unsealed"`
	Undrained []remainingWriter `json:"undrained"`
}

func newNewGroup() *cobra.Command {
	var d databaseFlags
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
				return errors.Join(err, remainingWritersError(done.Undrained))
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
		return done, pgfence.Translate(unknownIfBroken(err))
	}
	done.KeyPrefix = pgfence.KeyPrefixOf(id)
	if before != "" {
		done.Before = pgfence.KeyPrefixOf(before)
	}
	var err error
	if done.Undrained, err = drainInvalidated(ctx, pool); err != nil {
		err = withHint(fmt.Errorf("%s writers under earlier grants may not have ended: %w", done.text(), err), exitOf(err), drainHint)
	}
	return done, err
}

func (n newGroup) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "the Redis keys of the database %s begin with %s from now on; start its gateways and programs again\n", n.Database, n.KeyPrefix)
	fmt.Fprintf(&b, "%d fence(s) raised: every earlier grant is refused here\n", n.Raised)
	writeUnsealed(&b, n.Unsealed)
	writeRemaining(&b, n.Undrained)
	return b.String()
}
