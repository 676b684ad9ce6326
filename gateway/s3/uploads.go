package s3

import (
	"context"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/jackc/pgx/v5"
	"github.com/versity/versitygw/s3response"

	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/gateway/s3/s3error"
)

const sqlUploads = `SELECT entry, is_prefix, coalesce(id, '00000000-0000-0000-0000-000000000000'), coalesce(created_at, 'epoch')
	FROM objects.list_uploads($1, $2, $3, $4, $5, $6)`

// afterAll is above every upload of a key.
var afterAll = blob.ID{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// ListMultipartUploads implements the front's Backend.
func (b *backend) ListMultipartUploads(ctx context.Context, in *s3.ListMultipartUploadsInput) (s3response.ListMultipartUploadsResult, error) {
	r := b.requestOf(ctx)
	limit := min(int(*in.MaxUploads), maxList)
	result := s3response.ListMultipartUploadsResult{
		Bucket: *in.Bucket, Prefix: *in.Prefix, Delimiter: *in.Delimiter, KeyMarker: *in.KeyMarker, UploadIDMarker: *in.UploadIdMarker, MaxUploads: limit,
	}
	encoding, err := r.encoding()
	if err != nil {
		return result, err
	}
	marker := afterAll
	if result.UploadIDMarker != "" && result.KeyMarker != "" {
		if marker, err = blob.ParseID(result.UploadIDMarker); err != nil {
			return result, s3error.Error{Code: "InvalidArgument", Status: 400, Message: "Invalid uploadId marker"}
		}
	}
	if _, err = b.db.rule(b.base, *in.Bucket); err == nil && limit > 0 {
		err = b.db.uploads(b.base, &result, marker)
	}
	if err != nil {
		return result, b.fail(r, *in.Bucket, "ListMultipartUploads", err)
	}
	if encoding != "" {
		result.EncodingType = string(encoding)
		for i := range result.Uploads {
			result.Uploads[i].Key = encodeName(result.Uploads[i].Key)
		}
		for i := range result.CommonPrefixes {
			result.CommonPrefixes[i].Prefix = encodeName(result.CommonPrefixes[i].Prefix)
		}
		for _, text := range []*string{&result.Prefix, &result.Delimiter, &result.KeyMarker, &result.NextKeyMarker} {
			*text = encodeName(*text)
		}
	}
	return result, nil
}

// uploads reads one page of the uploads under way above the result's key marker
// and the given upload.
func (d database) uploads(ctx context.Context, result *s3response.ListMultipartUploadsResult, marker blob.ID) error {
	return d.once(ctx, func(ctx context.Context, q querier) error {
		rows, err := q.Query(ctx, sqlUploads, result.Bucket, result.Prefix, result.Delimiter, result.KeyMarker, uuid(marker), result.MaxUploads+1)
		if err != nil {
			return err
		}
		var entry string
		var isPrefix bool
		var id [16]byte
		var begun time.Time
		count, lastKey, lastID := 0, "", ""
		_, err = pgx.ForEachRow(rows, []any{&entry, &isPrefix, &id, &begun}, func() error {
			if count++; count > result.MaxUploads {
				result.IsTruncated, result.NextKeyMarker, result.NextUploadIDMarker = true, lastKey, lastID
				return nil
			}
			if lastKey, lastID = entry, ""; isPrefix {
				result.CommonPrefixes = append(result.CommonPrefixes, s3response.CommonPrefix{Prefix: entry})
				return nil
			}
			lastID = blob.ID(id).String()
			result.Uploads = append(result.Uploads, s3response.Upload{
				Key: entry, UploadID: lastID, Initiated: begun, StorageClass: types.StorageClassStandard,
			})
			return nil
		})
		return err
	})
}
