package s3

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/versity/versitygw/s3err"
	"github.com/versity/versitygw/s3response"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/blob"
)

const sqlCommitDeletion = "SELECT objects.commit_deletion($1, $2, $3, $4, $5, $6, $7, $8)"

// DeleteObject implements the front's Backend: the fence check and the removal
// of the pointer in one transaction.
func (b *backend) DeleteObject(ctx context.Context, in *s3.DeleteObjectInput) (*s3.DeleteObjectOutput, error) {
	r := b.requestOf(ctx)
	if err := b.remove(b.base, r, in); err != nil {
		return nil, b.fail(r, *in.Bucket, "DeleteObject", err)
	}
	return &s3.DeleteObjectOutput{}, nil
}

// DeleteObjects implements the front's Backend: one commit for each key, each
// with its own answer.
func (b *backend) DeleteObjects(ctx context.Context, in *s3.DeleteObjectsInput) (s3response.DeleteResult, error) {
	r := b.requestOf(ctx)
	var result s3response.DeleteResult
	if len(in.Delete.Objects) > maxList {
		return result, s3err.GetAPIError(s3err.ErrMalformedXML)
	}
	if _, err := b.db.rule(b.base, *in.Bucket); err != nil {
		return result, b.fail(r, *in.Bucket, "DeleteObjects", err)
	}
	within, cancel := context.WithTimeout(b.base, deleteTime)
	defer cancel()
	var away error // since when PostgreSQL does not answer: the rest is not even tried
	for _, o := range in.Delete.Objects {
		if o.Key == nil {
			return result, s3err.GetAPIError(s3err.ErrMalformedXML)
		}
		if away != nil {
			result.Error = append(result.Error, deleteError(o.Key, unavailable(messageNotTried)))
			continue
		}
		err := b.remove(within, r, &s3.DeleteObjectInput{
			Bucket: in.Bucket, Key: o.Key, VersionId: o.VersionId, IfMatch: o.ETag,
			IfMatchLastModifiedTime: o.LastModifiedTime, IfMatchSize: o.Size,
		})
		if err == nil {
			result.Deleted = append(result.Deleted, types.DeletedObject{Key: o.Key})
			continue
		}
		if errors.Is(err, errDatabaseAway) || errors.Is(err, fence.ErrUnknown) {
			away = err
		}
		result.Error = append(result.Error, deleteError(o.Key, b.fail(r, *in.Bucket, "DeleteObjects", err)))
	}
	return result, nil
}

// deleteTime is what all deletions of one request have together.
const deleteTime = time.Minute

func deleteError(key *string, err error) types.Error {
	e := types.Error{Key: key}
	if api, ok := errors.AsType[s3err.S3Error](err); ok {
		base := api.BaseError()
		e.Code, e.Message = &base.Code, &base.Description
	}
	return e
}

func (b *backend) remove(ctx context.Context, r request, in *s3.DeleteObjectInput) error {
	if in.VersionId != nil && *in.VersionId != "" && *in.VersionId != "null" || in.IfMatchLastModifiedTime != nil || in.IfMatchSize != nil {
		return errNotThere
	}
	if err := checkKey(*in.Key); err != nil { // one of a list was not seen at the gate
		return err
	}
	if err := b.needGrant(&r, *in.Bucket, *in.Key); err != nil {
		return err
	}
	var ifMatch *string
	if in.IfMatch != nil && *in.IfMatch != "" {
		etag := strings.Trim(*in.IfMatch, `"`)
		ifMatch = &etag
	}
	return b.db.settle(ctx, exec(sqlCommitDeletion, uuid(blob.NewID()), *in.Bucket, *in.Key,
		r.grant.resource, int64(r.grant.token), r.grant.sealHash, nullable(r.invocation), ifMatch))
}
