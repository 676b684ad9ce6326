package s3

import (
	"context"
	"encoding/base64"
	"net/url"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/versity/versitygw/s3response"

	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/s3/s3error"
)

// ListObjectsV2 implements versitygw's Backend.
func (b *backend) ListObjectsV2(ctx context.Context, in *s3.ListObjectsV2Input) (s3response.ListObjectsV2Result, error) {
	r := b.requestOf(ctx)
	limit := min(int(*in.MaxKeys), maxList)
	result := s3response.ListObjectsV2Result{
		Name: in.Bucket, Prefix: in.Prefix, Delimiter: optional(aws.ToString(in.Delimiter)), StartAfter: in.StartAfter,
		ContinuationToken: in.ContinuationToken, MaxKeys: in.MaxKeys,
	}
	encoding, err := r.encoding()
	if err != nil {
		return result, err
	}
	after := *in.StartAfter
	if token := *in.ContinuationToken; token != "" {
		raw, err := base64.RawURLEncoding.DecodeString(token)
		if err != nil || !objects.ValidText(string(raw)) {
			return result, s3error.Error{Code: "InvalidArgument", Status: 400, Message: "The continuation token provided is incorrect"}
		}
		after = string(raw)
	}
	l, err := b.catalog.List(b.base, *in.Bucket, *in.Prefix, *in.Delimiter, after, limit)
	if err != nil {
		return result, b.fail(r, *in.Bucket, "ListObjectsV2", err)
	}
	truncated := l.Last != ""
	if truncated {
		next := base64.RawURLEncoding.EncodeToString([]byte(l.Last))
		result.NextContinuationToken = &next
	}
	if encoding != "" {
		encodeNames(l)
		result.EncodingType, result.Prefix, result.Delimiter, result.StartAfter = encoding, encodeOptional(in.Prefix), encodeOptional(optional(aws.ToString(in.Delimiter))), encodeOptional(in.StartAfter)
	}
	count := int32(len(l.Objects) + len(l.Prefixes))
	result.Contents, result.CommonPrefixes = entries(l)
	result.KeyCount, result.IsTruncated = &count, &truncated
	if in.FetchOwner != nil && *in.FetchOwner {
		for i := range result.Contents {
			result.Contents[i].Owner = b.rootOwner()
		}
	}
	return result, nil
}

// ListObjects implements versitygw's Backend.
func (b *backend) ListObjects(ctx context.Context, in *s3.ListObjectsInput) (s3response.ListObjectsResult, error) {
	r := b.requestOf(ctx)
	result := s3response.ListObjectsResult{Name: in.Bucket, Prefix: in.Prefix, Delimiter: optional(aws.ToString(in.Delimiter)), Marker: in.Marker, MaxKeys: in.MaxKeys}
	encoding, err := r.encoding()
	if err != nil {
		return result, err
	}
	l, err := b.catalog.List(b.base, *in.Bucket, *in.Prefix, *in.Delimiter, *in.Marker, min(int(*in.MaxKeys), maxList))
	if err != nil {
		return result, b.fail(r, *in.Bucket, "ListObjects", err)
	}
	truncated := l.Last != ""
	if truncated && *in.Delimiter != "" { // without a delimiter clients continue from the last key
		result.NextMarker = &l.Last
	}
	if encoding != "" {
		encodeNames(l)
		result.EncodingType, result.Prefix, result.Delimiter, result.Marker = encoding, encodeOptional(in.Prefix), encodeOptional(optional(aws.ToString(in.Delimiter))), encodeOptional(in.Marker)
		result.NextMarker = encodeOptional(result.NextMarker)
	}
	result.IsTruncated = &truncated
	result.Contents, result.CommonPrefixes = entries(l)
	for i := range result.Contents {
		result.Contents[i].Owner = b.rootOwner()
	}
	return result, nil
}

// entries converts a page's objects and prefixes for the answer.
func entries(l objects.Listing) (found []s3response.Object, prefixes []types.CommonPrefix) {
	for i := range l.Objects {
		o := &l.Objects[i]
		tag := quoted(o.ETag)
		found = append(found, s3response.Object{Key: &o.Key, Size: &o.Size, ETag: &tag, LastModified: &o.Modified, StorageClass: types.ObjectStorageClassStandard})
	}
	for i := range l.Prefixes {
		prefixes = append(prefixes, types.CommonPrefix{Prefix: &l.Prefixes[i]})
	}
	return found, prefixes
}

// encodeNames percent-encodes the names for clients that ask for it.
func encodeNames(l objects.Listing) {
	for i := range l.Objects {
		l.Objects[i].Key = encodeName(l.Objects[i].Key)
	}
	for i := range l.Prefixes {
		l.Prefixes[i] = encodeName(l.Prefixes[i])
	}
}

var encodeRest = strings.NewReplacer("+", "%20", "%2F", "/")

func encodeName(s string) string { return encodeRest.Replace(url.QueryEscape(s)) }

func encodeOptional(s *string) *string {
	if s == nil {
		return nil
	}
	e := encodeName(*s)
	return &e
}

// rootOwner is the owner of every object: root is the only account.
func (b *backend) rootOwner() *types.Owner {
	return &types.Owner{ID: &b.root, DisplayName: &b.root}
}

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
		Name: in.Bucket, Prefix: in.Prefix, Delimiter: optional(aws.ToString(in.Delimiter)), KeyMarker: in.KeyMarker, VersionIdMarker: in.VersionIdMarker,
		MaxKeys: in.MaxKeys, IsTruncated: &truncated,
	}
	encoding, err := r.encoding()
	if err != nil {
		return result, err
	}
	name := func(s string) *string { return &s }
	if encoding != "" {
		result.EncodingType, result.Prefix, result.Delimiter, result.KeyMarker = encoding, encodeOptional(in.Prefix), encodeOptional(optional(aws.ToString(in.Delimiter))), encodeOptional(in.KeyMarker)
		name = func(s string) *string { return encodeOptional(&s) }
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
		err = b.listUploads(&result, marker)
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

// listUploads reads one page of the uploads in progress after the result's key marker and the given upload.
func (b *backend) listUploads(result *s3response.ListMultipartUploadsResult, marker blob.ID) error {
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
