package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fencegate/fencegate/wire"
)

func newActivity(e env) *cobra.Command {
	var g gatewayFlags
	var asJSON, follow, refused, table bool
	cmd := &cobra.Command{
		Use:   "activity [--table [PREFIX]]",
		Short: "Print what happens at a gateway: refused writes, and leases that come and go",
		Long: `Print what happens at a gateway: refused writes; leases that were acquired, released, lost or
revoked, or that ran out; nodes that came and went. First come the events that the gateway keeps:
the latest 2048, or with --refused the latest 512 refusals, which other events do not displace. New
events follow until you interrupt it. Each gateway has its own events: behind a balancer, name all of
them with --gateway, separated by commas. What they keep is then printed in the order of time.

With --table it shows who holds what, too, of all resources or of those with a prefix: a table on a
terminal, which is redrawn each second; elsewhere a line for each resource that is held, and then
the events.

PostgreSQL counts refused writes per table, also those that bypass the gateways:

  SELECT relation, refused FROM fence.protected`,
		Example: `  fencegate activity
  fencegate activity --table orders/
  fencegate activity --refused --follow=false
  fencegate activity --json | jq 'select(.kind == "revoked")'`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) > 0 && !table:
				return usage(errors.New("PREFIX needs --table"))
			case table && (asJSON || refused):
				return usage(errors.New("--table excludes --json and --refused"))
			}
			c, err := g.client(cmd.Context(), e)
			if err != nil {
				return err
			}
			ctx, stop := untilUnread(cmd.Context(), cmd.OutOrStdout())
			defer stop()
			if table {
				w := &watching{client: c, out: cmd.OutOrStdout(), note: cmd.ErrOrStderr(), rows: maxRows}
				if len(args) == 1 {
					w.prefix = args[0]
				}
				return w.run(ctx, follow)
			}
			show := printEvent
			if asJSON {
				show = func(out io.Writer, e wire.Event) error { return printLine(out, e) }
			}
			return follows(ctx, streamsOf(c, refused), follow, cmd.ErrOrStderr(), func(e wire.Event) error { return show(cmd.OutOrStdout(), e) })
		},
	}
	g.register(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print each event as a line of JSON")
	cmd.Flags().BoolVar(&table, "table", false, "show the held resources and the events")
	cmd.Flags().BoolVar(&refused, "refused", false, "print the refused writes only")
	cmd.Flags().BoolVar(&follow, "follow", true, "print new events as they come; false: print the kept ones, and end")
	return cmd
}

// printEvent prints an event as a line.
func printEvent(out io.Writer, e wire.Event) error {
	words := []string{e.Time.UTC().Format(time.RFC3339), e.Kind}
	add := func(when bool, format string, a ...any) {
		if when {
			words = append(words, fmt.Sprintf(format, a...))
		}
	}
	add(e.Code != "", "%s", e.Code)
	add(e.Kind == wire.EventMissed && e.Missed > 0, "%d events: the reader was too slow", e.Missed)
	add(e.Kind == wire.EventMissed && e.Missed == 0, "some events: the reader was too slow, the gateway restarted, or another gateway answered")
	add(e.Node != "", "node=%s", oneLine(e.Node))
	add(e.Kind == wire.EventSwept, "deleted=%d", e.Deleted)
	add(e.Surface != "", "%s", e.Surface)
	add(e.Statement != "", "%s", e.Statement)
	add(e.Table != "", "%s", oneLine(e.Table))
	add(e.Resource != "", "resource=%s", oneLine(e.Resource))
	add(e.Needed != "", "needs=%s", oneLine(e.Needed))
	add(e.Presented != 0, "token=%s", e.Presented)
	add(e.Recorded != 0, "fence=%s", e.Recorded)
	add(e.Holder != "", "by=%s", oneLine(e.Holder))
	add(e.Login != "", "login=%s", oneLine(e.Login))
	add(e.Client != "", "client=%s", e.Client)
	add(e.App != "", "app=%s", oneLine(e.ShortApp()))
	_, err := fmt.Fprintln(out, strings.Join(words, " "))
	return unread(err)
}

// printLine prints a line of JSON.
func printLine(out io.Writer, v any) error { return unread(json.NewEncoder(out).Encode(v)) }
