package s3

import (
	"context"

	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/versity/versitygw/s3err"
	"github.com/versity/versitygw/s3response"

	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/s3/s3error"
)

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
		return s3error.NotThere
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
