package s3

import (
	"context"
	"encoding/json"
	"encoding/xml"
	"fmt"

	"github.com/versity/versitygw/auth"
	"github.com/versity/versitygw/s3err"

	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/s3/s3error"
)

// Documents that root keeps with a bucket. Each is checked and stored in a normalized form. Every reader of the
// bucket's objects may read them.

const (
	maxStoredDocument = 64 << 10 // bytes, S3's limit for CORS
	maxCORSRules      = 100
)

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

// DeleteBucketPolicy implements versitygw's Backend. There is no policy to delete.
func (b *backend) DeleteBucketPolicy(ctx context.Context, bucket string) error {
	r := b.requestOf(ctx)
	if !r.root {
		return s3err.GetAPIError(s3err.ErrAccessDenied)
	}
	if _, err := b.catalog.Rule(b.base, bucket); err != nil {
		return b.fail(r, bucket, "DeleteBucketPolicy", err)
	}
	return nil
}

// GetObjectRetention implements versitygw's Backend. No bucket has object lock.
func (b *backend) GetObjectRetention(ctx context.Context, bucket, key, version string) ([]byte, error) {
	return nil, b.notLocked(ctx, bucket, key, version, "GetObjectRetention")
}

// GetObjectLegalHold implements versitygw's Backend, like GetObjectRetention.
func (b *backend) GetObjectLegalHold(ctx context.Context, bucket, key, version string) (*bool, error) {
	return nil, b.notLocked(ctx, bucket, key, version, "GetObjectLegalHold")
}

// PutObjectRetention implements versitygw's Backend. S3 also refuses it for a bucket without object lock.
func (b *backend) PutObjectRetention(ctx context.Context, bucket, key, version string, _ []byte) error {
	return b.notLocked(ctx, bucket, key, version, "PutObjectRetention")
}

// PutObjectLegalHold implements versitygw's Backend, like PutObjectRetention.
func (b *backend) PutObjectLegalHold(ctx context.Context, bucket, key, version string, _ bool) error {
	return b.notLocked(ctx, bucket, key, version, "PutObjectLegalHold")
}

func (b *backend) notLocked(ctx context.Context, bucket, key, version, operation string) error {
	if _, err := b.reader.Find(b.base, bucket, key, version); err != nil {
		return b.fail(b.requestOf(ctx), bucket, operation, err)
	}
	return s3err.GetAPIError(s3err.ErrMissingObjectLockConfiguration)
}
