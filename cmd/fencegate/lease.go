package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/fence"
)

func newLease(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lease",
		Short: "Acquire, renew and release leases by hand or from scripts",
		Long: `Acquire, renew and release leases by hand or from scripts.

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
			surviveUnread()
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

// readWithin reads in to its end, at most limit bytes. It returns when ctx is done, since a terminal may have no end.
func readWithin(ctx context.Context, in io.Reader, limit int64) ([]byte, error) {
	type result struct {
		read []byte
		err  error
	}
	done := make(chan result, 1)
	go func() {
		b, err := io.ReadAll(io.LimitReader(in, limit))
		done <- result{b, err}
	}()
	select {
	case r := <-done:
		return r.read, r.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
