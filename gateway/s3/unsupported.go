package s3

import (
	"context" //nolint:gosec // S3 defines the ETag as the MD5 of the bytes
	//nolint:gosec // S3 defines the ETag of a multipart object by the MD5 of its parts
	"encoding/xml"
	"net/http"

	"github.com/versity/versitygw/s3err"

	"github.com/fencegate/fencegate/gateway/s3/s3error"
)

// GetBucketPolicy implements versitygw's Backend: there are no policies.
func (*backend) GetBucketPolicy(context.Context, string) ([]byte, error) {
	return nil, s3err.GetAPIError(s3err.ErrNoSuchBucketPolicy)
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

// readPolicyStatus answers that nothing is public, because there are no policies.
func (b *backend) readPolicyStatus(a addressed) (any, int, error) {
	return struct {
		XMLName  xml.Name `xml:"PolicyStatus"`
		IsPublic bool
	}{}, http.StatusOK, b.there(a)
}

// none answers that a bucket has no such configuration; no bucket can have one.
func none(code, message string) ownAnswer {
	return func(b *backend, a addressed) (any, int, error) {
		if err := b.there(a); err != nil {
			return nil, 0, err
		}
		return nil, 0, s3error.Error{Code: code, Status: http.StatusNotFound, Message: message}
	}
}

var (
	noOwnership    = none("OwnershipControlsNotFoundError", "The bucket ownership controls were not found.")
	noPublicAccess = none("NoSuchPublicAccessBlockConfiguration", "The public access block configuration was not found.")
	noEncryption   = none("ServerSideEncryptionConfigurationNotFoundError", "The server side encryption configuration was not found.")
	noLifecycle    = none("NoSuchLifecycleConfiguration", "The lifecycle configuration does not exist.")
	noReplication  = none("ReplicationConfigurationNotFoundError", "The replication configuration was not found.")
)

// deleteNone deletes a configuration that no bucket can have.
func deleteNone(b *backend, a addressed) (any, int, error) {
	if !a.root {
		return nil, 0, s3err.GetAPIError(s3err.ErrAccessDenied)
	}
	return nil, http.StatusNoContent, b.there(a)
}

// there returns an error if the bucket, or the object that the request names, does not exist.
func (b *backend) there(a addressed) error {
	if a.key == "" {
		_, err := b.catalog.Rule(b.base, a.bucket)
		return err
	}
	_, err := b.reader.Find(b.base, a.bucket, a.key, a.query("versionId"))
	return err
}

// GetObjectLockConfiguration implements versitygw's Backend: there is none.
func (*backend) GetObjectLockConfiguration(context.Context, string) ([]byte, error) {
	return nil, s3err.GetAPIError(s3err.ErrObjectLockConfigurationNotFound)
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
