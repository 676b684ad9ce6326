package s3

import (
	"context"
	"encoding/xml"
	"net/http"

	"github.com/versity/versitygw/s3err"

	"github.com/fencegate/fencegate/gateway/s3/s3error"
)

// What S3 has and this port has not: policies, object lock, and settings that no bucket can have. They are answered as
// for a bucket without them. versitygw asks for policies and for object lock in each request, so those answers read
// nothing; the operation itself finds whether the bucket exists.

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
func (b *backend) readPolicyStatus(t target) (any, int, error) {
	return struct {
		XMLName  xml.Name `xml:"PolicyStatus"`
		IsPublic bool
	}{}, http.StatusOK, b.checkExists(t)
}

// notConfigured answers that a bucket has no such configuration; no bucket can have one.
func notConfigured(code, message string) ownAnswer {
	return func(b *backend, t target) (any, int, error) {
		if err := b.checkExists(t); err != nil {
			return nil, 0, err
		}
		return nil, 0, s3error.Error{Code: code, Status: http.StatusNotFound, Message: message}
	}
}

var (
	noOwnership    = notConfigured("OwnershipControlsNotFoundError", "The bucket ownership controls were not found.")
	noPublicAccess = notConfigured("NoSuchPublicAccessBlockConfiguration", "The public access block configuration was not found.")
	noEncryption   = notConfigured("ServerSideEncryptionConfigurationNotFoundError", "The server side encryption configuration was not found.")
	noLifecycle    = notConfigured("NoSuchLifecycleConfiguration", "The lifecycle configuration does not exist.")
	noReplication  = notConfigured("ReplicationConfigurationNotFoundError", "The replication configuration was not found.")
)

// deleteUnconfigured deletes a configuration that no bucket can have.
func deleteUnconfigured(b *backend, t target) (any, int, error) {
	if !t.root {
		return nil, 0, s3err.GetAPIError(s3err.ErrAccessDenied)
	}
	return nil, http.StatusNoContent, b.checkExists(t)
}

// checkExists returns an error if the bucket, or the object that the request names, does not exist.
func (b *backend) checkExists(t target) error {
	if t.key == "" {
		_, err := b.catalog.Rule(b.base, t.bucket)
		return err
	}
	_, err := b.reader.Find(b.base, t.bucket, t.key, t.query("versionId"))
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
