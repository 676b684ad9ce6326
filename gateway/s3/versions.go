package s3

import (
	"context"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/versity/versitygw/s3response"

	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/s3/s3error"
)

// ListObjectVersions implements versitygw's Backend.
func (b *backend) ListObjectVersions(ctx context.Context, in *s3.ListObjectVersionsInput) (s3response.ListVersionsResult, error) {
	r := b.requestOf(ctx)
	result, err := b.listVersions(r, in)
	if err != nil {
		return result, b.fail(r, *in.Bucket, "ListObjectVersions", err)
	}
	return result, nil
}

func (b *backend) listVersions(r request, in *s3.ListObjectVersionsInput) (s3response.ListVersionsResult, error) {
	limit := min(int(*in.MaxKeys), maxList)
	truncated := false
	result := s3response.ListVersionsResult{
		Name: in.Bucket, Prefix: in.Prefix, Delimiter: given(in.Delimiter), KeyMarker: in.KeyMarker, VersionIdMarker: in.VersionIdMarker,
		MaxKeys: in.MaxKeys, IsTruncated: &truncated,
	}
	encoding, err := r.encoding()
	if err != nil {
		return result, err
	}
	name := func(s string) *string { return &s }
	if encoding != "" {
		result.EncodingType, result.Prefix, result.Delimiter, result.KeyMarker = encoding, encoded(in.Prefix), encoded(given(in.Delimiter)), encoded(in.KeyMarker)
		name = func(s string) *string { return encoded(&s) }
	}
	if *in.VersionIdMarker != "" && *in.KeyMarker == "" {
		return result, s3error.Error{Code: "InvalidArgument", Status: 400, Message: "A version-id marker cannot be specified without a key marker."}
	}
	keep, err := b.catalog.Keep(b.base, *in.Bucket)
	if err != nil || limit == 0 {
		return result, err
	}
	found, err := b.catalog.ListVersions(b.base, objects.VersionPage{
		Bucket: *in.Bucket, Prefix: *in.Prefix, Delimiter: *in.Delimiter, AfterKey: *in.KeyMarker, AfterVersion: *in.VersionIdMarker, Limit: limit,
	})
	if err != nil {
		return result, err
	}
	if truncated = len(found) > limit; truncated {
		found = found[:limit]
		last := found[limit-1]
		if result.NextKeyMarker = name(last.Key); !last.IsPrefix {
			result.NextVersionIdMarker = &last.ID // and not NullVersion, after which the next key begins
		}
	}
	owner := b.rootOwner()
	for _, l := range found {
		switch id, etag := shownID(l, keep), quoted(l.ETag); {
		case l.IsPrefix:
			result.CommonPrefixes = append(result.CommonPrefixes, types.CommonPrefix{Prefix: name(l.Key)})
		case l.Deletion:
			result.DeleteMarkers = append(result.DeleteMarkers, types.DeleteMarkerEntry{
				Key: name(l.Key), VersionId: id, IsLatest: &l.Latest, LastModified: &l.Modified, Owner: owner,
			})
		default:
			result.Versions = append(result.Versions, s3response.ObjectVersion{
				Key: name(l.Key), VersionId: id, IsLatest: &l.Latest, LastModified: &l.Modified, Owner: owner,
				ETag: &etag, Size: &l.Size, StorageClass: types.ObjectVersionStorageClassStandard,
			})
		}
	}
	return result, nil
}

// shownID returns the version id that clients see.
func shownID(l objects.VersionEntry, k objects.Keep) *string {
	id := l.ID
	if k == (objects.Keep{}) && l.Latest {
		id = objects.NullVersion
	}
	return &id
}
