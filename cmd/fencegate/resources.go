package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/wire"
)

func newResources(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "resources",
		Short: "Look at resources: who holds which, their fence and lock",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var g gatewayFlags
	show := &cobra.Command{
		Use:     "show RESOURCE",
		Short:   "Print what is known of a resource as JSON",
		Example: `  fencegate resources show orders/1001`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := g.client(cmd.Context(), e)
			if err != nil {
				return err
			}
			known, err := c.Resource(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return printJSON(cmd.OutOrStdout(), known)
		},
	}
	g.register(show)
	cmd.AddCommand(newResourcesLs(e), show)
	return cmd
}

// listed holds the flags of a resource list.
type listed struct {
	after      string
	limit      int
	held, json bool
}

func newResourcesLs(e env) *cobra.Command {
	var g gatewayFlags
	var l listed
	cmd := &cobra.Command{
		Use:   "ls [PREFIX]",
		Short: "List resources and who holds them, in the order of their names",
		Long: `List resources that have a fence, in the order of their names: live (somebody holds the
lease), released, expired (the lease ran out; a late write is refused once somebody acquires),
revoked (HOLDER names who did it), or unknown (the lock does not answer). A resource that was never
acquired, or whose fence was retired, is not listed; "fencegate lease show" describes it.`,
		Example: `  fencegate resources ls --held
  fencegate resources ls orders/ --json | jq -r .resource`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if l.limit < 1 {
				return usage(fmt.Errorf("--limit %d: it must be 1 or more", l.limit))
			}
			c, err := g.client(cmd.Context(), e)
			if err != nil {
				return err
			}
			prefix := ""
			if len(args) == 1 {
				prefix = args[0]
			}
			return l.list(cmd, c, prefix)
		},
	}
	g.register(cmd)
	cmd.Flags().BoolVar(&l.held, "held", false, "only those that somebody holds")
	cmd.Flags().StringVar(&l.after, "after", "", "begin after this resource")
	cmd.Flags().IntVar(&l.limit, "limit", 1000, "list at most that many")
	cmd.Flags().BoolVar(&l.json, "json", false, "print each resource as a line of JSON")
	return cmd
}

// pageSize is how many resources one request returns.
const pageSize = 500

func (l listed) list(cmd *cobra.Command, c *client.Client, prefix string) error {
	w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
	header := !l.json
	after := l.after
	for left := l.limit; left > 0; {
		page, err := c.Resources(cmd.Context(), client.ResourcesRequest{Prefix: prefix, After: after, Held: l.held, Limit: min(left, pageSize)})
		if err != nil {
			return errors.Join(w.Flush(), err)
		}
		if header {
			header = false
			fmt.Fprintln(w, "RESOURCE\tSTATE\tTOKEN\tLEFT\tWAITERS\tHOLDER")
		}
		for _, one := range page.Resources {
			if err := l.print(w, cmd.OutOrStdout(), one); err != nil {
				return err
			}
		}
		left -= len(page.Resources)
		if page.Next == nil {
			return w.Flush()
		}
		if after = *page.Next; left == 0 && !l.json {
			err = w.Flush()
			_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "there may be more: --after %q\n", after)
			return err
		}
	}
	return w.Flush()
}

func (l listed) print(w, out io.Writer, one wire.Listed) error {
	if l.json {
		return printLine(out, one)
	}
	_, err := fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\n", oneLine(one.Resource), one.State, one.Token, leftOf(one), one.Waiters, oneLine(one.Holder))
	return err
}

// leftOf returns how long a lease lasts without renewal.
func leftOf(one wire.Listed) string {
	switch {
	case one.State != wire.StateLive:
		return "-"
	case one.LeftMS == nil:
		return "never ends"
	}
	return (time.Duration(*one.LeftMS) * time.Millisecond).Round(100 * time.Millisecond).String()
}

func newLeaseShow(e env) *cobra.Command {
	var g gatewayFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show RESOURCE",
		Short: "Show whether somebody holds a resource, whether its lease is over, or that it has no fence",
		Example: `  fencegate lease show orders/1001
  fencegate lease show orders/1001 --json | jq -r .state`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := g.client(cmd.Context(), e)
			if err != nil {
				return err
			}
			one, err := leaseOf(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), one)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), leaseLine(one))
			return err
		},
	}
	g.register(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// leaseOf returns a resource's list entry, also if it has no fence.
func leaseOf(ctx context.Context, c *client.Client, resource string) (wire.Listed, error) {
	known, err := c.Inspect(ctx, resource)
	if problem, ok := errors.AsType[*client.Problem](err); ok && problem.Status == http.StatusNotFound && problem.Code == wire.CodeNotFound {
		one := wire.Listed{State: wire.StateNever}
		one.Resource = resource
		return one, nil
	}
	if err != nil {
		return wire.Listed{}, err
	}
	one := wire.Listed{Record: known.Record, State: wire.StateOf(known.Record, known.Locked)}
	if known.Lock != nil {
		one.LeftMS, one.Waiters = known.Lock.TTLMS, known.Lock.Waiters
	}
	return one, nil
}

// leaseLine describes the entry in a sentence.
func leaseLine(one wire.Listed) string {
	name, holder := oneLine(one.Resource), oneLine(one.Holder)
	switch one.State {
	case wire.StateNever:
		return name + ": no fence is recorded: it was never held, or its fence was retired"
	case wire.StateLive:
		return fmt.Sprintf("%s: held by %s with token %s, for another %s unless it is renewed; %d waiting", name, holder, one.Token, leftOf(one), one.Waiters)
	case wire.StateReleased:
		return fmt.Sprintf("%s: released by %s, token %s, at %s", name, holder, one.Token, one.EndedAt.UTC().Format(time.RFC3339))
	case wire.StateRevoked:
		return fmt.Sprintf("%s: %s at %s; the fence is at token %s, which has no holder", name, holder, one.ArmedAt.UTC().Format(time.RFC3339), one.Token)
	case wire.StateExpired:
		return fmt.Sprintf("%s: expired; the fence stands at token %s, armed by %s at %s", name, one.Token, holder, one.ArmedAt.UTC().Format(time.RFC3339))
	}
	return fmt.Sprintf("%s: the lock does not say; the fence stands at token %s, armed by %s at %s", name, one.Token, holder, one.ArmedAt.UTC().Format(time.RFC3339))
}
