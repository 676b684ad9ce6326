package s3

import (
	"context"
	"encoding/json"
	"encoding/xml"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/versity/versitygw/auth"
	"github.com/versity/versitygw/s3err"

	"github.com/fencegate/fencegate/gateway/s3/s3error"
)

// Documents that root keeps with a bucket. Each is checked, and stored in a form
// of its own; whoever reads the bucket's objects reads them too.

// documentKind names one of a bucket's documents; it has one of each at most.
type documentKind string

const (
	kindCORS         documentKind = "cors"
	kindTags         documentKind = "tagging"
	kindOwnership    documentKind = "ownership"
	kindPublicAccess documentKind = "public-access"
)

const (
	sqlSetDocument = "SELECT objects.set_bucket_document($1, $2, $3)"
	sqlDocument    = "SELECT d.document FROM objects.buckets b LEFT JOIN objects.bucket_documents d ON d.bucket = b.name AND d.kind = $2 WHERE b.name = $1"

	maxStoredDocument = 64 << 10 // bytes, as S3 has it for CORS
	maxCORSRules      = 100
)

// document reads one; "" where there is none. The error is errNoBucket where
// there is no such bucket.
func (d database) document(ctx context.Context, bucket string, kind documentKind) (string, error) {
	var text pgtype.Text
	err := d.once(ctx, func(ctx context.Context, q querier) error {
		return q.QueryRow(ctx, sqlDocument, bucket, string(kind)).Scan(&text)
	})
	return text.String, noRows(err, errNoBucket)
}

// readDocument is document with an error of its own where there is none.
func (b *backend) readDocument(ctx context.Context, bucket string, kind documentKind, operation string, missing s3err.S3Error) (string, error) {
	text, err := b.db.document(b.base, bucket, kind)
	switch {
	case err != nil:
		return "", b.fail(b.requestOf(ctx), bucket, operation, err)
	case text == "":
		return "", missing
	}
	return text, nil
}

// setDocument stores one for root, or with "" removes it.
func (b *backend) setDocument(ctx context.Context, bucket string, kind documentKind, operation, text string) error {
	r := b.requestOf(ctx)
	if !r.root {
		return s3err.GetAPIError(s3err.ErrAccessDenied)
	}
	if len(text) > maxStoredDocument {
		return s3err.GetMaxMessageLengthExceeded(maxStoredDocument)
	}
	if err := b.db.settle(b.base, exec(sqlSetDocument, bucket, string(kind), pgtype.Text{String: text, Valid: text != ""})); err != nil {
		return b.fail(r, bucket, operation, err)
	}
	return nil
}

// GetBucketCors implements the front's Backend. The front asks for each request
// that a browser sends for a page of another origin, before it is authenticated.
func (b *backend) GetBucketCors(ctx context.Context, bucket string) ([]byte, error) {
	text, err := b.readDocument(ctx, bucket, kindCORS, "GetBucketCors", s3err.GetAPIError(s3err.ErrNoSuchCORSConfiguration))
	return []byte(text), err
}

// PutBucketCors implements the front's Backend, which has checked the rules.
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
	return b.setDocument(ctx, bucket, kindCORS, "PutBucketCors", string(stored))
}

// DeleteBucketCors implements the front's Backend.
func (b *backend) DeleteBucketCors(ctx context.Context, bucket string) error {
	return b.setDocument(ctx, bucket, kindCORS, "DeleteBucketCors", "")
}

// GetBucketTagging implements the front's Backend.
func (b *backend) GetBucketTagging(ctx context.Context, bucket string) (map[string]string, error) {
	text, err := b.readDocument(ctx, bucket, kindTags, "GetBucketTagging", s3err.GetAPIError(s3err.ErrBucketTaggingNotFound))
	if err != nil {
		return nil, err
	}
	var tags map[string]string
	if err := json.Unmarshal([]byte(text), &tags); err != nil {
		return nil, b.fail(b.requestOf(ctx), bucket, "GetBucketTagging", fmt.Errorf("read the tags of bucket %q: %w", bucket, err))
	}
	return tags, nil
}

// PutBucketTagging implements the front's Backend, which has checked the tags.
func (b *backend) PutBucketTagging(ctx context.Context, bucket string, tags map[string]string) error {
	for key, value := range tags {
		if !validText(key) || !validText(value) {
			return s3error.InvalidText("tag")
		}
	}
	text, err := json.Marshal(tags)
	if err != nil {
		return fmt.Errorf("encode the tags of bucket %q: %w", bucket, err)
	}
	return b.setDocument(ctx, bucket, kindTags, "PutBucketTagging", string(text))
}

// DeleteBucketTagging implements the front's Backend.
func (b *backend) DeleteBucketTagging(ctx context.Context, bucket string) error {
	return b.setDocument(ctx, bucket, kindTags, "DeleteBucketTagging", "")
}

// GetBucketOwnershipControls implements the front's Backend: what was set, though
// root owns whatever is written in any case.
func (b *backend) GetBucketOwnershipControls(ctx context.Context, bucket string) (types.ObjectOwnership, error) {
	text, err := b.readDocument(ctx, bucket, kindOwnership, "GetBucketOwnershipControls", s3err.GetAPIError(s3err.ErrOwnershipControlsNotFound))
	return types.ObjectOwnership(text), err
}

// PutBucketOwnershipControls implements the front's Backend. The other kinds of
// ownership are for ACLs, which are not there.
func (b *backend) PutBucketOwnershipControls(ctx context.Context, bucket string, ownership types.ObjectOwnership) error {
	if ownership != types.ObjectOwnershipBucketOwnerEnforced {
		return s3error.NotThere
	}
	return b.setDocument(ctx, bucket, kindOwnership, "PutBucketOwnershipControls", string(ownership))
}

// DeleteBucketOwnershipControls implements the front's Backend.
func (b *backend) DeleteBucketOwnershipControls(ctx context.Context, bucket string) error {
	return b.setDocument(ctx, bucket, kindOwnership, "DeleteBucketOwnershipControls", "")
}

// publicAccess says what must never become public. Nothing is, here: what the
// flags add is that an attempt is denied, where it would not be implemented.
type publicAccess struct {
	XMLName               xml.Name `json:"-" xml:"PublicAccessBlockConfiguration"`
	BlockPublicAcls       bool
	IgnorePublicAcls      bool
	BlockPublicPolicy     bool
	RestrictPublicBuckets bool
}

// publicAccess is what root has set; the zero value where nothing is.
func (b *backend) publicAccess(bucket string) (p publicAccess, set bool, err error) {
	text, err := b.db.document(b.base, bucket, kindPublicAccess)
	if err != nil || text == "" {
		return p, false, err
	}
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		return p, false, fmt.Errorf("read what bucket %q blocks: %w", bucket, err)
	}
	return p, true, nil
}

// PutBucketPolicy implements the front's Backend: there are no policies. One that
// makes the bucket public is denied where that is blocked.
func (b *backend) PutBucketPolicy(ctx context.Context, bucket string, document []byte) error {
	block, _, err := b.publicAccess(bucket)
	if err != nil {
		return b.fail(b.requestOf(ctx), bucket, "PutBucketPolicy", err)
	}
	if policy, err := auth.ParsePolicyDocument(document); err == nil && block.BlockPublicPolicy && policy.IsPublic() {
		return s3err.GetAPIError(s3err.ErrAccessDenied)
	}
	return s3error.NotThere
}

// DeleteBucketPolicy implements the front's Backend: there is none to delete.
func (b *backend) DeleteBucketPolicy(ctx context.Context, bucket string) error {
	r := b.requestOf(ctx)
	if !r.root {
		return s3err.GetAPIError(s3err.ErrAccessDenied)
	}
	if _, err := b.db.rule(b.base, bucket); err != nil {
		return b.fail(r, bucket, "DeleteBucketPolicy", err)
	}
	return nil
}

// GetObjectRetention implements the front's Backend: no bucket locks its objects.
func (b *backend) GetObjectRetention(ctx context.Context, bucket, key, version string) ([]byte, error) {
	return nil, b.notLocked(ctx, bucket, key, version, "GetObjectRetention")
}

// GetObjectLegalHold implements the front's Backend, as GetObjectRetention.
func (b *backend) GetObjectLegalHold(ctx context.Context, bucket, key, version string) (*bool, error) {
	return nil, b.notLocked(ctx, bucket, key, version, "GetObjectLegalHold")
}

// PutObjectRetention implements the front's Backend: S3 refuses it, too, where the
// bucket does not lock.
func (b *backend) PutObjectRetention(ctx context.Context, bucket, key, version string, _ []byte) error {
	return b.notLocked(ctx, bucket, key, version, "PutObjectRetention")
}

// PutObjectLegalHold implements the front's Backend, as PutObjectRetention.
func (b *backend) PutObjectLegalHold(ctx context.Context, bucket, key, version string, _ bool) error {
	return b.notLocked(ctx, bucket, key, version, "PutObjectLegalHold")
}

func (b *backend) notLocked(ctx context.Context, bucket, key, version, operation string) error {
	if _, err := b.find(bucket, key, version); err != nil {
		return b.fail(b.requestOf(ctx), bucket, operation, err)
	}
	return s3err.GetAPIError(s3err.ErrMissingObjectLockConfiguration)
}
