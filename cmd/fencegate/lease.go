package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/wire"
)

func newLease(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lease",
		Short: "Acquire, renew and release leases from a shell or a script",
		Long: `Acquire, renew and release leases from a shell or a script.

The JSON that "acquire" prints holds secrets: the grant and the handle. Keep it in a
variable or a private file; "renew" and "release" read the handle from standard input, so
that it never shows in a process list.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newLeaseAcquire(e), newLeaseRenew(e), newLeaseRelease(e), newLeaseShow(e))
	return cmd
}

func newLeaseAcquire(e env) *cobra.Command {
	var g gatewayFlags
	var ttl, wait time.Duration
	var holder string
	cmd := &cobra.Command{
		Use:     "acquire RESOURCE",
		Short:   "Acquire a lease and print it as JSON",
		Example: `  fencegate lease acquire orders/1001 --ttl 30s --wait 10s`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := g.client(cmd.Context(), e)
			if err != nil {
				return err
			}
			if ttl <= 0 {
				return &fence.InvalidError{Field: "ttl", Reason: "must be positive"}
			}
			if holder == "" { // otherwise the gateway records its own name
				holder, _ = os.Hostname()
				if user, ok := e.lookup("USER"); ok && user != "" {
					holder = user + "@" + holder
				}
			}
			catchSIGPIPE()
			lease, err := c.Acquire(cmd.Context(), client.AcquireRequest{Resource: args[0], TTL: ttl, Wait: wait, Holder: holder})
			if err != nil {
				return err
			}
			err = printJSON(cmd.OutOrStdout(), map[string]any{
				"resource": lease.Resource, "token": lease.Token, "grant": lease.Presented, "handle": lease.Handle,
				"valid_ms": lease.Deadline.Left().Milliseconds(),
			})
			if err == nil {
				return nil
			}
			// The caller could not release the lease without the handle.
			if failed := c.Release(context.WithoutCancel(cmd.Context()), lease.Handle); failed != nil {
				code, hint := classify(failed)
				return withHint(errors.Join(err, failed), code, hint)
			}
			return err
		},
	}
	g.register(cmd)
	cmd.Flags().DurationVar(&ttl, "ttl", 30*time.Second, "how long the lease lasts unless renewed")
	cmd.Flags().DurationVar(&wait, "wait", 0, "how long to wait while another holds the resource")
	cmd.Flags().StringVar(&holder, "holder", "", "name shown to people who inspect the resource (default: USER@HOST)")
	return cmd
}

func newLeaseRenew(e env) *cobra.Command {
	var g gatewayFlags
	var ttl time.Duration
	cmd := &cobra.Command{
		Use:     "renew",
		Short:   "Extend the lease whose handle is on standard input",
		Example: `  jq -r .handle lease.json | fencegate lease renew --ttl 30s`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, handle, err := clientAndHandle(cmd.Context(), e, &g, cmd.InOrStdin())
			if err != nil {
				return err
			}
			deadline, err := c.Renew(cmd.Context(), handle, ttl)
			if err != nil {
				return err
			}
			return printJSON(cmd.OutOrStdout(), map[string]any{"valid_ms": deadline.Left().Milliseconds()})
		},
	}
	g.register(cmd)
	cmd.Flags().DurationVar(&ttl, "ttl", 30*time.Second, "how long the lease lasts from now, whatever it was acquired with")
	return cmd
}

func newLeaseRelease(e env) *cobra.Command {
	var g gatewayFlags
	cmd := &cobra.Command{
		Use:     "release",
		Short:   "End the lease whose handle is on standard input",
		Example: `  jq -r .handle lease.json | fencegate lease release`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, handle, err := clientAndHandle(cmd.Context(), e, &g, cmd.InOrStdin())
			if err != nil {
				return err
			}
			return c.Release(cmd.Context(), handle)
		},
	}
	g.register(cmd)
	return cmd
}

const maxHandle = 4096

func clientAndHandle(ctx context.Context, e env, g *gatewayFlags, in io.Reader) (*client.Client, string, error) {
	c, err := g.client(ctx, e)
	if err != nil {
		return nil, "", err
	}
	b, err := readWithin(ctx, in, maxHandle)
	if err != nil {
		return nil, "", err
	}
	handle := strings.Join(strings.Fields(string(b)), " ")
	if handle == "" {
		return nil, "", usage(fmt.Errorf("no handle on standard input"))
	}
	return c, handle, nil
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
