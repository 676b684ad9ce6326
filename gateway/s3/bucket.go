package s3

import (
	"context"
	"errors"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/versity/versitygw/s3err"
	"github.com/versity/versitygw/s3response"

	"github.com/fencegate/fencegate/gateway/objects"
)

// CreateBucket implements versitygw's Backend. The bucket gets the default rule.
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
	created, _, err := b.catalog.CreateBucket(b.base, *in.Bucket, b.cfg.DefaultRule)
	switch {
	case err != nil:
		return b.fail(r, *in.Bucket, "CreateBucket", err)
	case !created && b.cfg.Region != regionOfOld:
		return s3err.GetBucketErr(s3err.ErrBucketAlreadyOwnedByYou, *in.Bucket)
	}
	return nil
}

// mayNotCreate refuses a lease's request. If the bucket exists, the error says so, as S3 answers a bucket's owner:
// rclone and others create the bucket before they upload, and then continue.
func (b *backend) mayNotCreate(r request, bucket string) error {
	switch _, err := b.catalog.Rule(b.base, bucket); {
	case err == nil:
		return s3err.GetBucketErr(s3err.ErrBucketAlreadyOwnedByYou, bucket)
	case errors.Is(err, objects.ErrNoBucket):
		return s3err.GetAPIError(s3err.ErrAccessDenied)
	default:
		return b.fail(r, bucket, "CreateBucket", err)
	}
}

// regionOfOld is the region in which S3 lets an owner create a bucket again, without effect.
const regionOfOld = "us-east-1"

// validLabels reports whether the labels of a bucket's name are valid in a host name.
func validLabels(name string) bool {
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || strings.HasPrefix(label, "-") || strings.HasSuffix(label, "-") {
			return false
		}
	}
	return true
}

// DeleteBucket implements versitygw's Backend.
func (b *backend) DeleteBucket(ctx context.Context, bucket string) error {
	r := b.requestOf(ctx)
	if !r.root {
		return s3err.GetAPIError(s3err.ErrAccessDenied)
	}
	if err := b.catalog.DeleteBucket(b.base, bucket); err != nil {
		return b.fail(r, bucket, "DeleteBucket", err)
	}
	return nil
}

// HeadBucket implements versitygw's Backend.
func (b *backend) HeadBucket(ctx context.Context, in *s3.HeadBucketInput) (*s3.HeadBucketOutput, error) {
	if _, err := b.catalog.Rule(b.base, *in.Bucket); err != nil {
		return nil, b.fail(b.requestOf(ctx), *in.Bucket, "HeadBucket", err)
	}
	return &s3.HeadBucketOutput{}, nil
}

// ListBuckets implements versitygw's Backend.
func (b *backend) ListBuckets(ctx context.Context, in s3response.ListBucketsInput) (s3response.ListAllMyBucketsResult, error) {
	result := s3response.ListAllMyBucketsResult{Owner: s3response.CanonicalUser{ID: b.cfg.RootAccessKey}, Prefix: in.Prefix}
	limit := int(in.MaxBuckets)
	found, err := b.catalog.ListBuckets(b.base, in.ContinuationToken, in.Prefix, limit+1)
	if err != nil {
		return result, b.fail(b.requestOf(ctx), "", "ListBuckets", err)
	}
	if len(found) > limit {
		found = found[:limit]
		result.ContinuationToken = found[limit-1].Name
	}
	for _, bucket := range found {
		result.Buckets.Bucket = append(result.Buckets.Bucket, s3response.ListAllMyBucketsEntry{Name: bucket.Name, CreationDate: bucket.Created})
	}
	return result, nil
}
