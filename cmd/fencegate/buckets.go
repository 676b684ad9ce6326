package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/wire"
)

func newBuckets(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "buckets",
		Short: "Make buckets, and say which resource their writes need and what they keep",
		Long: `Make buckets, and say which resource their writes need and what they keep of older versions.

Rules are bucket, prefix:N, key, one of them behind monotone:, monotone, and none. A rule changes
only while nothing lies below it. What is kept is none, a number of versions, a duration such as
30d, or all. With --write-once an object can't change for that time after it was written; the time
can be shortened only while the bucket holds no object. CORS rules and tags are set by S3's own calls
(put-bucket-cors). See docs/s3.md.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newBucketsList(e), newBucketsShow(e), newBucketsSet(e), newBucketsRule(e), newBucketsDropRule(e))
	return cmd
}

// bucketCall makes a command for one call, whose answer is printed as JSON.
func bucketCall(e env, cmd *cobra.Command, call func(ctx context.Context, c *client.Client, args []string) (json.RawMessage, error)) *cobra.Command {
	return bucketShow(e, cmd, call, func(cmd *cobra.Command, answer json.RawMessage) error { return printJSON(cmd.OutOrStdout(), answer) })
}

// bucketShow makes a command for one call, whose answer is printed as text.
func bucketShow(e env, cmd *cobra.Command, call func(ctx context.Context, c *client.Client, args []string) (json.RawMessage, error), show func(*cobra.Command, json.RawMessage) error) *cobra.Command {
	var g gatewayFlags
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 && args[0] == "" {
			return usage(errors.New("the bucket's name is empty"))
		}
		c, err := g.client(cmd.Context(), e)
		if err != nil {
			return err
		}
		answer, err := call(cmd.Context(), c, args)
		if err != nil {
			return err
		}
		return show(cmd, answer)
	}
	g.register(cmd)
	return cmd
}

func newBucketsList(e env) *cobra.Command {
	var after string
	var limit int
	var asJSON bool
	cmd := &cobra.Command{
		Use: "ls", Short: "List the buckets, in the order of their names",
		Example: `  fencegate buckets ls
  fencegate buckets ls --json | jq -r '.buckets[] | [.bucket, .rule, .keep] | @tsv'`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringVar(&after, "after", "", "begin after this name")
	cmd.Flags().IntVar(&limit, "limit", 100, "list at most that many, up to 1000")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return bucketShow(e, cmd, func(ctx context.Context, c *client.Client, _ []string) (json.RawMessage, error) {
		return c.Buckets(ctx, after, limit)
	}, func(cmd *cobra.Command, answer json.RawMessage) error {
		if asJSON {
			return printJSON(cmd.OutOrStdout(), answer)
		}
		return printBuckets(cmd, answer)
	})
}

func printBuckets(cmd *cobra.Command, answer json.RawMessage) error {
	var page wire.Buckets
	if err := json.Unmarshal(answer, &page); err != nil {
		return fmt.Errorf("the gateway's list of buckets: %w", err)
	}
	err := printList(cmd.OutOrStdout(), false, page.Buckets, "BUCKET\tRULE\tKEEP\tWRITE ONCE\tCREATED\tRULES BELOW PREFIXES", func(b wire.Bucket) string {
		below := make([]string, len(b.Prefixes))
		for i, p := range b.Prefixes {
			below[i] = oneLine(p.Prefix) + "=" + oneLine(p.Rule)
		}
		return fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t%s", oneLine(b.Bucket), oneLine(b.Rule), oneLine(b.Keep), oneLine(b.WriteOnce),
			b.CreatedAt.UTC().Format(time.RFC3339), cmp.Or(strings.Join(below, " "), "-"))
	})
	if err != nil {
		return err
	}
	if page.Next != nil {
		_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "there are more: --after %q\n", *page.Next)
	}
	return nil
}

func newBucketsShow(e env) *cobra.Command {
	cmd := &cobra.Command{Use: "show BUCKET", Short: "Print what holds in a bucket as JSON", Example: `  fencegate buckets show orders`, Args: cobra.ExactArgs(1)}
	return bucketCall(e, cmd, func(ctx context.Context, c *client.Client, args []string) (json.RawMessage, error) {
		return c.Bucket(ctx, args[0])
	})
}

func newBucketsSet(e env) *cobra.Command {
	var want wire.BucketRequest
	cmd := &cobra.Command{
		Use: "set BUCKET", Short: "Make a bucket with a rule, or change what holds in it",
		Example: `  fencegate buckets set orders --rule prefix:1 --keep 30d
  fencegate buckets set archive --rule key --write-once 90d`,
		Args: cobra.ExactArgs(1),
	}
	cmd.Flags().StringVar(&want.Rule, "rule", "", "which resource a write of a key needs; makes the bucket where it is missing")
	cmd.Flags().StringVar(&want.Keep, "keep", "", "what becomes of versions that are no longer current")
	cmd.Flags().StringVar(&want.WriteOnce, "write-once", "", "for how long an object can be neither overwritten nor deleted, from its writing on; none")
	return bucketCall(e, cmd, func(ctx context.Context, c *client.Client, args []string) (json.RawMessage, error) {
		if want == (wire.BucketRequest{}) {
			return nil, usage(fmt.Errorf("nothing to set: name --rule, --keep or --write-once"))
		}
		return c.SetBucket(ctx, args[0], want)
	})
}

func newBucketsRule(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "rule BUCKET PREFIX RULE", Short: "Give the keys that begin with a prefix a rule of their own; the longest prefix counts",
		Example: `  fencegate buckets rule orders scratch/ none`,
		Args:    cobra.ExactArgs(3),
	}
	return bucketCall(e, cmd, func(ctx context.Context, c *client.Client, args []string) (json.RawMessage, error) {
		if args[1] == "" {
			return nil, usage(errors.New("the prefix is empty; the rule of all keys is changed by fencegate buckets set"))
		}
		return c.SetPrefixRule(ctx, args[0], args[1], args[2])
	})
}

func newBucketsDropRule(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "drop-rule BUCKET PREFIX", Short: "Let the keys that begin with a prefix follow the rule of a shorter one, or of the bucket, again",
		Example: `  fencegate buckets drop-rule orders scratch/`,
		Args:    cobra.ExactArgs(2),
	}
	return bucketCall(e, cmd, func(ctx context.Context, c *client.Client, args []string) (json.RawMessage, error) {
		if args[1] == "" {
			return nil, usage(errors.New("the prefix is empty"))
		}
		return c.DropPrefixRule(ctx, args[0], args[1])
	})
}

func parseBuckets(specs []string) (map[string]string, error) {
	buckets := make(map[string]string, len(specs))
	for _, spec := range specs {
		name, rule, ok := strings.Cut(spec, "=")
		if !ok || name == "" || rule == "" {
			return nil, usage(fmt.Errorf("--bucket %q: it must be NAME=RULE, such as orders=prefix:1", spec))
		}
		_, err := objects.ParseRule(rule)
		if err = errors.Join(objects.CheckBucketName(name), err); err != nil {
			return nil, usage(fmt.Errorf("--bucket %q: %w", spec, err))
		}
		buckets[name] = rule
	}
	return buckets, nil
}
