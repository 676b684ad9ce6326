package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/spf13/cobra"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/client/wire"
	"github.com/fencegate/fencegate/fence/s3fence"
	"github.com/fencegate/fencegate/internal/leases"
	"github.com/fencegate/fencegate/internal/transfer"
)

// s3Access is how cat and cp reach an S3 port: with the environment
// that "fencegate run" provides, or with their own lease.
type s3Access struct {
	gateway   gatewayFlags
	resource  string
	ttl, wait time.Duration
}

func (a *s3Access) register(cmd *cobra.Command) {
	a.gateway.register(cmd)
	f := cmd.Flags()
	f.StringVar(&a.resource, "resource", "", "acquire a lease of this for the time, rather than using the AWS_… variables that fencegate run provides")
	f.DurationVar(&a.ttl, "ttl", 30*time.Second, "how long that lease lasts unless renewed; it is renewed every third of it")
	f.DurationVar(&a.wait, "wait", 0, "how long to wait while another holds the resource")
}

const s3Variables = "AWS_ENDPOINT_URL_S3, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"

// with calls f with a client. If the command has its own lease, f's context ends when the lease is lost.
func (a *s3Access) with(ctx context.Context, e env, f func(context.Context, *transfer.Client) error) error {
	if a.resource != "" {
		return a.underLease(ctx, e, f)
	}
	cfg := s3fence.FromEnv(e.lookup)
	if cfg.Endpoint == "" || cfg.Credentials == nil && (cfg.AccessKeyID == "" || cfg.SecretAccessKey == "") {
		return usage(errors.New(s3Variables + " are missing: run it under fencegate run, or name a --resource"))
	}
	if cfg.Region == "" {
		cfg.Region = "us-east-1"
	}
	return f(ctx, transfer.New(transfer.Config{Endpoint: cfg.Endpoint, Region: cfg.Region, Credentials: cfg.Provider()}))
}

func (a *s3Access) underLease(ctx context.Context, e env, f func(context.Context, *transfer.Client) error) error {
	if a.ttl <= 0 {
		return usage(errors.New("--ttl must be positive"))
	}
	c, err := a.gateway.client(ctx, e)
	if err != nil {
		return err
	}
	surviveUnread()
	host, _ := os.Hostname()
	lease, err := c.Acquire(ctx, client.AcquireRequest{Resource: a.resource, TTL: a.ttl, Wait: a.wait, Holder: fmt.Sprintf("%s/%d", host, os.Getpid())})
	if err != nil {
		return err
	}
	held, lose := context.WithCancelCause(ctx)
	renewing := make(chan struct{})
	go func() { defer close(renewing); renewLease(held, c, lease, lose) }()
	defer func() {
		lose(nil)
		<-renewing
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_ = c.Release(ctx, lease.Handle) // otherwise it expires
	}()
	creds, err := c.Credentials(ctx, wire.CredentialsRequest{Handle: lease.Handle})
	if err != nil {
		return err
	}
	err = f(held, transfer.New(transfer.Config{
		Endpoint: creds.EndpointURL, Region: creds.Region,
		Credentials: credentials.NewStaticCredentialsProvider(creds.AccessKeyID, creds.SecretAccessKey, creds.SessionToken),
	}))
	if err != nil && held.Err() != nil && ctx.Err() == nil {
		return withHint(fmt.Errorf("the lease on %s was lost: %w", a.resource, context.Cause(held)), exitLost, "what was written until then stands, or was refused by the fence; look, and run it again")
	}
	return err
}

// longestPause bounds how late the end of a machine's sleep is noticed.
const longestPause = 250 * time.Millisecond

var errNotRenewed = errors.New("it could not be renewed in time")

// renewLease renews until ctx ends. If the lease is lost, or its deadline is reached, it calls lose. As in the runner, a
// renewal is short enough to leave time for others after a silently cut connection.
func renewLease(ctx context.Context, c *client.Client, lease client.Lease, lose context.CancelCauseFunc) {
	deadline, cause := lease.Deadline, errNotRenewed
	next := deadline.Remaining() - lease.TTL*2/3
	for {
		// Timers stand still while the machine sleeps, and the deadline does not.
		for due := max(deadline.Remaining()-next, 0); deadline.Remaining() > due && ctx.Err() == nil; {
			leases.Pause(ctx, min(deadline.Remaining()-due, longestPause))
		}
		if ctx.Err() != nil {
			return
		}
		left := deadline.Remaining()
		if left <= 0 {
			lose(cause)
			return
		}
		bounded, cancel := context.WithTimeout(ctx, min(max(lease.TTL/8, 500*time.Millisecond), left))
		renewed, err := c.Renew(bounded, lease.Handle, lease.TTL)
		cancel()
		retry := max(lease.TTL/12, 50*time.Millisecond)
		problem, refused := errors.AsType[*client.Problem](err)
		switch {
		case err == nil:
			deadline, cause = renewed, errNotRenewed
			next = max(deadline.Remaining()-lease.TTL*2/3, retry)
		case refused && problem.Code == wire.CodeLeaseLost:
			lose(err)
			return
		default:
			next, cause = retry, fmt.Errorf("%w: %w", errNotRenewed, err)
		}
	}
}

func newObjectsCat(e env) *cobra.Command {
	var a s3Access
	var version, extent string
	cmd := &cobra.Command{
		Use:   "cat s3://BUCKET/KEY",
		Short: "Write an object, or a range of its bytes, to standard output",
		Example: `  fencegate run --resource orders/1001 -- fencegate objects cat s3://orders/1001/invoice.txt
  fencegate objects cat s3://orders/1001/log --range -1000 --resource orders/1001`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			from, err := objectArgument(args[0])
			if err != nil {
				return err
			}
			from.Version = version
			return a.with(cmd.Context(), e, func(ctx context.Context, c *transfer.Client) error {
				return c.Cat(ctx, from, cmd.OutOrStdout(), transfer.Options{Range: extent})
			})
		},
	}
	a.register(cmd)
	cmd.Flags().StringVar(&version, "version-id", "", "this version of it rather than the latest")
	cmd.Flags().StringVar(&extent, "range", "", "only these bytes: FIRST-LAST, counted from 0, or FIRST-, or -N for the last N")
	return cmd
}

func objectArgument(text string) (transfer.Object, error) {
	o, isObject, err := transfer.ParseObject(text)
	if err == nil && !isObject {
		err = usage(fmt.Errorf("%q is not an object; write s3://BUCKET/KEY", text))
	}
	return o, err
}

func newObjectsCopy(e env) *cobra.Command {
	var a s3Access
	var o transfer.Options
	var version string
	cmd := &cobra.Command{
		Use:   "cp SOURCE TARGET",
		Short: "Copy a file to an object, an object to a file, or an object to an object, fenced",
		Long: `Copy a file to an object, an object to a file, or an object to an object. Objects read
s3://BUCKET/KEY; everything else is a file. An object is written under the grant that "fencegate
run" provides by its AWS_… variables, or under a lease that is held for the time (--resource).
A stale grant changes nothing.

A regular file appears, or is replaced, when all of it is there; a symbolic link is followed. A
replaced file keeps its mode, and its owner and group if the user may set them. A named pipe or a
character device is written to, and /dev/stdout is standard output.`,
		Example: `  fencegate objects cp report.pdf s3://orders/1001/report.pdf --resource orders/1001
  fencegate run --resource orders/1001 -- fencegate objects cp s3://orders/1001/report.pdf s3://orders/1001/old.pdf`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			from, fromObject, err := transfer.ParseObject(args[0])
			if err != nil {
				return err
			}
			to, toObject, err := transfer.ParseObject(args[1])
			if err != nil {
				return err
			}
			switch {
			case !fromObject && !toObject:
				return usage(errors.New("neither is an object: one must read s3://BUCKET/KEY"))
			case version != "" && !fromObject:
				return usage(errors.New("--version-id is for a source that is an object"))
			case o.NoClobber && !toObject:
				return usage(errors.New("--no-clobber is for a target that is an object"))
			}
			from.Version = version
			return a.with(cmd.Context(), e, func(ctx context.Context, c *transfer.Client) error {
				switch {
				case !fromObject:
					return c.Upload(ctx, args[0], to, o)
				case args[1] == "/dev/stdout": // opened again it would begin at its start, and a socket can't be
					return c.Cat(ctx, from, cmd.OutOrStdout(), o)
				case !toObject:
					return c.Download(ctx, from, args[1], o)
				}
				return c.Copy(ctx, from, to, o)
			})
		},
	}
	a.register(cmd)
	cmd.Flags().StringVar(&version, "version-id", "", "copy this version of the source rather than the latest")
	cmd.Flags().BoolVar(&o.NoClobber, "no-clobber", false, "refuse to replace an object that is there")
	return cmd
}
