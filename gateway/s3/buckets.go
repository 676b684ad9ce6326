package s3

import (
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/versity/versitygw/auth"
	"github.com/versity/versitygw/s3err"
	"github.com/versity/versitygw/s3response"

	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/s3/s3error"
)

// CreateBucket implements versitygw's Backend. The bucket gets the default rule.
func (b *backend) CreateBucket(ctx context.Context, in *s3.CreateBucketInput, _ []byte) error {
	r := b.requestOf(ctx)
	if !r.root {
		return b.refuseCreate(r, *in.Bucket)
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
	case !created && b.cfg.Region != classicRegion:
		return s3err.GetBucketErr(s3err.ErrBucketAlreadyOwnedByYou, *in.Bucket)
	}
	return nil
}

// refuseCreate refuses a lease's request. If the bucket exists, the error says so, as S3 answers a bucket's owner:
// rclone and others create the bucket before they upload, and then continue.
func (b *backend) refuseCreate(r request, bucket string) error {
	switch _, err := b.catalog.Rule(b.base, bucket); {
	case err == nil:
		return s3err.GetBucketErr(s3err.ErrBucketAlreadyOwnedByYou, bucket)
	case errors.Is(err, objects.ErrNoBucket):
		return s3err.GetAPIError(s3err.ErrAccessDenied)
	default:
		return b.fail(r, bucket, "CreateBucket", err)
	}
}

// classicRegion is the region in which S3 lets an owner create a bucket again, without effect.
const classicRegion = "us-east-1"

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
	result := s3response.ListAllMyBucketsResult{Owner: s3response.CanonicalUser{ID: b.root}, Prefix: in.Prefix}
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

// GetBucketVersioning implements versitygw's Backend: versioning is enabled if the bucket keeps versions.
func (b *backend) GetBucketVersioning(ctx context.Context, bucket string) (s3response.GetBucketVersioningOutput, error) {
	var out s3response.GetBucketVersioningOutput
	k, err := b.catalog.Keep(b.base, bucket)
	if err != nil {
		return out, b.fail(b.requestOf(ctx), bucket, "GetBucketVersioning", err)
	}
	if k != (objects.Keep{}) {
		enabled := types.BucketVersioningStatusEnabled
		out.Status = &enabled
	}
	return out, nil
}

// PutBucketVersioning implements versitygw's Backend. Enabling keeps all versions, unless the bucket already keeps
// some. Suspending is not implemented.
func (b *backend) PutBucketVersioning(ctx context.Context, bucket string, status types.BucketVersioningStatus) error {
	r := b.requestOf(ctx)
	switch {
	case !r.root:
		return s3err.GetAPIError(s3err.ErrAccessDenied)
	case status != types.BucketVersioningStatusEnabled:
		return s3error.NotImplemented
	}
	k, err := b.catalog.Keep(b.base, bucket)
	if err == nil && k == (objects.Keep{}) {
		err = b.catalog.SetKeep(b.base, bucket, objects.Keep{All: true})
	}
	if err != nil {
		return b.fail(r, bucket, "PutBucketVersioning", err)
	}
	return nil
}

// Documents that root keeps with a bucket. Each is checked and stored in a normalized form. Every reader of the
// bucket's objects may read them.

const (
	maxStoredDocument = 64 << 10 // bytes, S3's limit for CORS
	maxCORSRules      = 100
)

// GetBucketCors implements versitygw's Backend. versitygw calls it for each cross-origin request of a browser, before
// it authenticates the request.
func (b *backend) GetBucketCors(ctx context.Context, bucket string) ([]byte, error) {
	text, err := b.readDocument(ctx, bucket, objects.DocumentCORS, "GetBucketCors", s3err.GetAPIError(s3err.ErrNoSuchCORSConfiguration))
	return []byte(text), err
}

// PutBucketCors implements versitygw's Backend, which has checked the rules.
func (b *backend) PutBucketCors(ctx context.Context, bucket string, document []byte) error {
	config, err := auth.ParseCORSOutput(document)
	if err != nil || len(config.Rules) > maxCORSRules {
		return s3err.GetAPIError(s3err.ErrMalformedXML)
	}
	for _, rule := range config.Rules {
		if rule.MaxAgeSeconds != nil && *rule.MaxAgeSeconds < 0 {
			return s3err.GetAPIError(s3err.ErrMalformedXML)
		}
	}
	stored, err := xml.Marshal(config)
	if err != nil {
		return fmt.Errorf("encode the CORS rules of bucket %q: %w", bucket, err)
	}
	return b.setDocument(ctx, bucket, objects.DocumentCORS, "PutBucketCors", string(stored))
}

// DeleteBucketCors implements versitygw's Backend.
func (b *backend) DeleteBucketCors(ctx context.Context, bucket string) error {
	return b.setDocument(ctx, bucket, objects.DocumentCORS, "DeleteBucketCors", "")
}

// GetBucketTagging implements versitygw's Backend.
func (b *backend) GetBucketTagging(ctx context.Context, bucket string) (map[string]string, error) {
	text, err := b.readDocument(ctx, bucket, objects.DocumentTags, "GetBucketTagging", s3err.GetAPIError(s3err.ErrBucketTaggingNotFound))
	if err != nil {
		return nil, err
	}
	var tags map[string]string
	if err := json.Unmarshal([]byte(text), &tags); err != nil {
		return nil, b.fail(b.requestOf(ctx), bucket, "GetBucketTagging", fmt.Errorf("read the tags of bucket %q: %w", bucket, err))
	}
	return tags, nil
}

// PutBucketTagging implements versitygw's Backend, which has checked the tags.
func (b *backend) PutBucketTagging(ctx context.Context, bucket string, tags map[string]string) error {
	for key, value := range tags {
		if !objects.ValidText(key) || !objects.ValidText(value) {
			return s3error.InvalidText("tag")
		}
	}
	text, err := json.Marshal(tags)
	if err != nil {
		return fmt.Errorf("encode the tags of bucket %q: %w", bucket, err)
	}
	return b.setDocument(ctx, bucket, objects.DocumentTags, "PutBucketTagging", string(text))
}

// DeleteBucketTagging implements versitygw's Backend.
func (b *backend) DeleteBucketTagging(ctx context.Context, bucket string) error {
	return b.setDocument(ctx, bucket, objects.DocumentTags, "DeleteBucketTagging", "")
}

// readDocument reads a document; missing is the error if there is none.
func (b *backend) readDocument(ctx context.Context, bucket string, kind objects.DocumentKind, operation string, missing s3err.S3Error) (string, error) {
	text, err := b.catalog.Document(b.base, bucket, kind)
	switch {
	case err != nil:
		return "", b.fail(b.requestOf(ctx), bucket, operation, err)
	case text == "":
		return "", missing
	}
	return text, nil
}

// setDocument stores a document for root; "" removes it.
func (b *backend) setDocument(ctx context.Context, bucket string, kind objects.DocumentKind, operation, text string) error {
	r := b.requestOf(ctx)
	if !r.root {
		return s3err.GetAPIError(s3err.ErrAccessDenied)
	}
	if len(text) > maxStoredDocument {
		return s3err.GetMaxMessageLengthExceeded(maxStoredDocument)
	}
	if err := b.catalog.SetDocument(b.base, bucket, kind, text); err != nil {
		return b.fail(r, bucket, operation, err)
	}
	return nil
}
