package s3

import (
	"context"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencegate/fencegate/gateway/blob"
)

const sqlCommitDeletion = "SELECT objects.commit_deletion($1, $2, $3, $4, $5, $6, $7)"

// DeleteObject implements the front's Backend: the fence check and the removal
// of the pointer in one transaction.
func (b *backend) DeleteObject(ctx context.Context, in *s3.DeleteObjectInput) (*s3.DeleteObjectOutput, error) {
	r := b.requestOf(ctx)
	if err := b.remove(r, in); err != nil {
		return nil, b.fail(r, *in.Bucket, "DeleteObject", err)
	}
	return &s3.DeleteObjectOutput{}, nil
}

func (b *backend) remove(r request, in *s3.DeleteObjectInput) error {
	if in.VersionId != nil && *in.VersionId != "" && *in.VersionId != "null" || in.IfMatchLastModifiedTime != nil || in.IfMatchSize != nil {
		return errNotFenced
	}
	if err := b.needGrant(r, *in.Bucket, *in.Key); err != nil {
		return err
	}
	var ifMatch *string
	if in.IfMatch != nil && *in.IfMatch != "" {
		etag := strings.Trim(*in.IfMatch, `"`)
		ifMatch = &etag
	}
	return b.db.settle(b.base, exec(sqlCommitDeletion, uuid(blob.NewID()), *in.Bucket, *in.Key,
		r.grant.resource, int64(r.grant.token), nullable(r.invocation), ifMatch))
}
