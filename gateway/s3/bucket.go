package s3

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/jackc/pgx/v5"
	"github.com/versity/versitygw/s3err"
	"github.com/versity/versitygw/s3response"

	"github.com/fencegate/fencegate/fence"
)

const (
	sqlCreateBucket = "SELECT created, current_depth, current_mode FROM objects.create_bucket($1, $2, $3)"
	sqlEnsureBucket = "SELECT objects.ensure_bucket($1, $2, $3)"
	sqlPrefixRule   = "SELECT objects.set_prefix_rule($1, $2, $3, $4)"
	sqlDeleteBucket = "SELECT objects.delete_bucket($1)"
	sqlRule         = "SELECT r.depth, r.mode FROM objects.rule_of($1, $2) r WHERE r.depth IS NOT NULL" // without the bucket it gives NULLs
	sqlListBuckets  = "SELECT name, created_at FROM objects.buckets WHERE name > $1 AND starts_with(name, $2) ORDER BY name LIMIT $3"
)

// createBucket makes the bucket where there is none. It reports whether it did,
// also where the acknowledgement of that was lost, and the bucket's rule.
func (d database) createBucket(ctx context.Context, bucket string, rule Rule) (created bool, current Rule, err error) {
	again := false
	err = d.settle(ctx, func(ctx context.Context, q querier) error {
		var mode string
		err := q.QueryRow(ctx, sqlCreateBucket, bucket, rule.depth, rule.stored()).Scan(&created, &current.depth, &mode)
		current.read(mode)
		created = created || again && current == rule
		again = true
		return err
	})
	return created, current, err
}

// ensureBucket makes the bucket, or gives it the rule; created says which.
func (d database) ensureBucket(ctx context.Context, bucket string, rule Rule) (created bool, err error) {
	err = d.settle(ctx, func(ctx context.Context, q querier) error {
		return q.QueryRow(ctx, sqlEnsureBucket, bucket, rule.depth, rule.stored()).Scan(&created)
	})
	return created, err
}

// prefixRule gives a prefix a rule of its own, or with nil takes it away.
func (d database) prefixRule(ctx context.Context, bucket, prefix string, rule *Rule) error {
	var depth *int
	mode := ""
	if rule != nil {
		depth, mode = &rule.depth, rule.stored()
	}
	return d.settle(ctx, exec(sqlPrefixRule, bucket, prefix, depth, mode))
}

// rule is the bucket's rule, or errNoBucket.
func (d database) rule(ctx context.Context, bucket string) (Rule, error) {
	return d.ruleOf(ctx, bucket, "")
}

// ruleOf is the rule of a key, or errNoBucket.
func (d database) ruleOf(ctx context.Context, bucket, key string) (Rule, error) {
	var r Rule
	var mode string
	err := d.once(ctx, func(ctx context.Context, q querier) error {
		return q.QueryRow(ctx, sqlRule, bucket, key).Scan(&r.depth, &mode)
	})
	r.read(mode)
	return r, noRows(err, errNoBucket)
}

// noRows replaces the error of a query that found nothing.
func noRows(err, instead error) error {
	if err == pgx.ErrNoRows { //nolint:errorlint // once returns it bare
		return instead
	}
	return err
}

// CreateBucket implements the front's Backend. The bucket gets the default rule.
func (b *backend) CreateBucket(ctx context.Context, in *s3.CreateBucketInput, _ []byte) error {
	r := b.requestOf(ctx)
	if !r.root {
		return b.mayNotCreate(r, *in.Bucket)
	}
	if in.ObjectLockEnabledForBucket != nil && *in.ObjectLockEnabledForBucket {
		return s3err.GetAPIError(s3err.ErrNotImplemented)
	}
	if !validLabels(*in.Bucket) {
		return s3err.GetBucketErr(s3err.ErrInvalidBucketName, *in.Bucket)
	}
	created, _, err := b.db.createBucket(b.base, *in.Bucket, b.cfg.DefaultRule)
	switch {
	case err != nil:
		return b.fail(r, *in.Bucket, "CreateBucket", err)
	case !created && b.cfg.Region != regionOfOld:
		return s3err.GetBucketErr(s3err.ErrBucketAlreadyOwnedByYou, *in.Bucket)
	case r.header(headerOwnership) != "": // the front has a default
		return b.PutBucketOwnershipControls(ctx, *in.Bucket, in.ObjectOwnership)
	}
	return nil
}

// mayNotCreate refuses a lease's request. Where the bucket is there it says that,
// as S3 does to a bucket's owner: rclone and others create the bucket before they
// upload, and go on then.
func (b *backend) mayNotCreate(r request, bucket string) error {
	switch _, err := b.db.rule(b.base, bucket); {
	case err == nil:
		return s3err.GetBucketErr(s3err.ErrBucketAlreadyOwnedByYou, bucket)
	case errors.Is(err, errNoBucket):
		return s3err.GetAPIError(s3err.ErrAccessDenied)
	default:
		return b.fail(r, bucket, "CreateBucket", err)
	}
}

// regionOfOld is where S3 lets its owner create a bucket again, which changes nothing.
const regionOfOld = "us-east-1"

// validLabels reports whether a bucket's name, which may be part of a host's,
// consists of such names between its dots.
func validLabels(name string) bool {
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || strings.HasPrefix(label, "-") || strings.HasSuffix(label, "-") {
			return false
		}
	}
	return true
}

// DeleteBucket implements the front's Backend.
func (b *backend) DeleteBucket(ctx context.Context, bucket string) error {
	r := b.requestOf(ctx)
	if !r.root {
		return s3err.GetAPIError(s3err.ErrAccessDenied)
	}
	err := b.db.settle(b.base, exec(sqlDeleteBucket, bucket))
	if errors.Is(err, fence.ErrUnknown) && errors.Is(err, errNoBucket) {
		return nil // the try whose answer was lost removed it
	}
	if err != nil {
		return b.fail(r, bucket, "DeleteBucket", err)
	}
	return nil
}

// HeadBucket implements the front's Backend.
func (b *backend) HeadBucket(ctx context.Context, in *s3.HeadBucketInput) (*s3.HeadBucketOutput, error) {
	if _, err := b.db.rule(b.base, *in.Bucket); err != nil {
		return nil, b.fail(b.requestOf(ctx), *in.Bucket, "HeadBucket", err)
	}
	return &s3.HeadBucketOutput{}, nil
}

// ListBuckets implements the front's Backend.
func (b *backend) ListBuckets(ctx context.Context, in s3response.ListBucketsInput) (s3response.ListAllMyBucketsResult, error) {
	result := s3response.ListAllMyBucketsResult{Owner: s3response.CanonicalUser{ID: b.cfg.RootAccessKey}, Prefix: in.Prefix}
	limit := int(in.MaxBuckets)
	err := b.db.once(b.base, func(ctx context.Context, q querier) error {
		rows, err := q.Query(ctx, sqlListBuckets, in.ContinuationToken, in.Prefix, limit+1)
		if err != nil {
			return err
		}
		var entry s3response.ListAllMyBucketsEntry
		var made time.Time
		_, err = pgx.ForEachRow(rows, []any{&entry.Name, &made}, func() error {
			entry.CreationDate = made
			result.Buckets.Bucket = append(result.Buckets.Bucket, entry)
			return nil
		})
		return err
	})
	if err != nil {
		return result, b.fail(b.requestOf(ctx), "", "ListBuckets", err)
	}
	if len(result.Buckets.Bucket) > limit {
		result.Buckets.Bucket = result.Buckets.Bucket[:limit]
		result.ContinuationToken = result.Buckets.Bucket[limit-1].Name
	}
	return result, nil
}
