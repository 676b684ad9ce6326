package main

import (
	"errors"
	"fmt"
	"io"
	"text/tabwriter"

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

// listFlags holds the flags of a resource list.
type listFlags struct {
	after      string
	limit      int
	held, json bool
}

func newResourcesLs(e env) *cobra.Command {
	var g gatewayFlags
	var l listFlags
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
			return l.list(cmd, c, argument(args, 0))
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

func (l listFlags) list(cmd *cobra.Command, c *client.Client, prefix string) error {
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

func (l listFlags) print(w, out io.Writer, one wire.Listed) error {
	if l.json {
		return printLine(out, one)
	}
	_, err := fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\n", oneLine(one.Resource), one.State, one.Token, leftOf(one), one.Waiters, oneLine(one.Holder))
	return err
}
