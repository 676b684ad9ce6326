package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/admin"
)

// The arguments of nodes mode.
const (
	modeStrict     = "strict"
	modeBestEffort = "best-effort"
)

func newNodesMode(e env) *cobra.Command {
	var g group
	cmd := &cobra.Command{
		Use:   "mode strict|best-effort",
		Short: "Mark the nodes of a group in use as strict, or for best effort",
		Long: `Mark the nodes of a group in use as strict, or for best effort.

A strict node that lost its data, or failed over, grants nothing until its quarantine is over, so
that one at a time holds a resource. A best-effort node is admitted at once: two may hold a
resource then, and the fence lets only the newest write. A new group needs no mark: it takes the
mode of the gateway that admits it.

The nodes grant nothing from the mark on, until gateways of that mode admit them: with
--redis-best-effort at once, without it after the quarantine of the group's longest TTL. Gateways
of the other mode are refused. Change the gateways' option before or after. Leases that are held
go on to their deadline, and are not renewed before the nodes are admitted.`,
		Example: `  fencegate nodes mode best-effort --redis r1:6379,r2:6379,r3:6379
  fencegate nodes mode strict --redis r1:6379,r2:6379,r3:6379`,
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{modeStrict, modeBestEffort},
		RunE: func(cmd *cobra.Command, args []string) error {
			return g.with(cmd.Context(), e, lock.Config{}, func(l *admin.Admin) error {
				if err := l.Mark(cmd.Context(), args[0] == modeBestEffort); err != nil {
					return withHint(fmt.Errorf("mark the nodes %s: %w", args[0], err), exitUnavailable, "run it again once all nodes answer; see `fencegate nodes status`")
				}
				_, err := fmt.Fprintf(cmd.ErrOrStderr(), "the nodes are marked %s; gateways of that mode admit them\n", args[0])
				return err
			})
		},
	}
	g.register(cmd)
	return cmd
}
