package main

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
)

const (
	sqlShowSource = `SELECT coalesce(s.source, ''), (SELECT count(*) FROM fence.leases l WHERE l.ends_at > clock_timestamp())
		FROM fence.lease_source s`
	sqlChangeSource = `SELECT fence.change_source($1, $2)`
)

// leaseSource is a database's lease source, and how many of PostgreSQL's leases are held or were ended.
type leaseSource struct {
	Source string `json:"source"`
	Held   int64  `json:"held"`
	Ended  int64  `json:"ended"`
}

func newFenceSource() *cobra.Command {
	var d database
	var yes, end bool
	cmd := &cobra.Command{
		Use:   "source [redis|postgres|etcd|zookeeper|kubernetes|other]",
		Short: "Show where the leases of a database come from, or change it",
		Long: `Show where the leases of a database come from, or change it. The first gateway, or the first lease,
records it; a gateway or a program of another kind then grants nothing. etcd, zookeeper, kubernetes
and other are sources of gateways written in Go.

To change it, stop every gateway and every program that takes leases, and wait until the leases
have ended; then confirm with --yes. Leases of PostgreSQL that are still held refuse it, unless
--end-leases ends them, as releases would. Leases of Redis can't be seen from here.`,
		Example: `  fencegate fence source
  fencegate fence source postgres --yes --postgres-url postgres://admin@db/app`,
		Args:      cobra.MatchAll(cobra.MaximumNArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{"redis", "postgres", "etcd", "zookeeper", "kubernetes", "other"},
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) == 0 && (yes || end):
				return usage(errors.New("--yes and --end-leases change the source: name the new one"))
			case len(args) == 1 && !yes:
				return usage(errors.New("a gateway of the other source could give a resource to a second holder: stop all of them, and confirm it with --yes"))
			}
			return d.with(cmd.Context(), func(pool *pgxpool.Pool) error {
				var s leaseSource
				if len(args) == 1 {
					if err := pool.QueryRow(cmd.Context(), sqlChangeSource, args[0], end).Scan(&s.Ended); err != nil {
						return broken(err)
					}
				}
				if err := pool.QueryRow(cmd.Context(), sqlShowSource).Scan(&s.Source, &s.Held); err != nil {
					return err
				}
				if d.json {
					return printJSON(cmd.OutOrStdout(), s)
				}
				_, err := fmt.Fprint(cmd.OutOrStdout(), s.text())
				return err
			})
		},
	}
	d.register(cmd, asMigrator)
	cmd.Flags().BoolVar(&yes, "yes", false, "confirm: every gateway and every program that takes leases is stopped")
	cmd.Flags().BoolVar(&end, "end-leases", false, "end the leases of PostgreSQL that are held")
	markTypedOnly(cmd, "yes")
	markTypedOnly(cmd, "end-leases")
	return cmd
}

func (s leaseSource) text() string {
	text := "leases come from " + s.Source
	if s.Source == "" {
		text = "nobody has taken a lease yet: the first gateway or lease decides where they come from"
	}
	if s.Held > 0 {
		text += fmt.Sprintf("; %d of PostgreSQL's are held", s.Held)
	}
	if s.Ended > 0 {
		text += fmt.Sprintf("; %d were ended", s.Ended)
	}
	return text + "\n"
}
