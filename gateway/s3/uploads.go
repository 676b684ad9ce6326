package s3

import (
	"context"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/versity/versitygw/s3response"

	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/s3/s3error"
)

// ListMultipartUploads implements versitygw's Backend.
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
	marker := objects.AfterAll
	if result.UploadIDMarker != "" && result.KeyMarker != "" {
		if marker, err = blob.ParseID(result.UploadIDMarker); err != nil {
			return result, s3error.Error{Code: "InvalidArgument", Status: 400, Message: "Invalid uploadId marker"}
		}
	}
	if _, err = b.catalog.Rule(b.base, *in.Bucket); err == nil && limit > 0 {
		err = b.uploads(&result, marker)
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

// uploads reads one page of the uploads in progress after the result's key marker and the given upload.
func (b *backend) uploads(result *s3response.ListMultipartUploadsResult, marker blob.ID) error {
	found, err := b.catalog.ListUploads(b.base, result.Bucket, result.Prefix, result.Delimiter, result.KeyMarker, marker, result.MaxUploads)
	if err != nil {
		return err
	}
	if len(found) > result.MaxUploads {
		found = found[:result.MaxUploads]
		last := found[len(found)-1]
		if result.IsTruncated, result.NextKeyMarker = true, last.Key; !last.IsPrefix {
			result.NextUploadIDMarker = last.ID.String()
		}
	}
	for _, u := range found {
		if u.IsPrefix {
			result.CommonPrefixes = append(result.CommonPrefixes, s3response.CommonPrefix{Prefix: u.Key})
			continue
		}
		result.Uploads = append(result.Uploads, s3response.Upload{
			Key: u.Key, UploadID: u.ID.String(), Initiated: u.Begun, StorageClass: types.StorageClassStandard,
		})
	}
	return nil
}
