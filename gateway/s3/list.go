package s3

import (
	"context"
	"encoding/base64"
	"net/url"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/versity/versitygw/s3response"

	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/s3/s3error"
)

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

// encode percent-encodes the names for clients that ask for it.
func encode(l objects.Listing) {
	for i := range l.Objects {
		l.Objects[i].Key = encodeName(l.Objects[i].Key)
	}
	for i := range l.Prefixes {
		l.Prefixes[i] = encodeName(l.Prefixes[i])
	}
}

var encodeRest = strings.NewReplacer("+", "%20", "%2F", "/")

func encodeName(s string) string { return encodeRest.Replace(url.QueryEscape(s)) }

// encoding returns the encoding-type, which versitygw does not pass on.
func (r request) encoding() (types.EncodingType, error) {
	switch t := r.query("encoding-type"); t {
	case "":
		return "", nil
	case "url":
		return types.EncodingTypeUrl, nil
	}
	return "", s3error.Error{Code: "InvalidArgument", Status: 400, Message: "Invalid Encoding Method specified in Request"}
}

// ListObjectsV2 implements versitygw's Backend.
func (b *backend) ListObjectsV2(ctx context.Context, in *s3.ListObjectsV2Input) (s3response.ListObjectsV2Result, error) {
	r := b.requestOf(ctx)
	limit := min(int(*in.MaxKeys), maxList)
	result := s3response.ListObjectsV2Result{
		Name: in.Bucket, Prefix: in.Prefix, Delimiter: given(in.Delimiter), StartAfter: in.StartAfter,
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
		encode(l)
		result.EncodingType, result.Prefix, result.Delimiter, result.StartAfter = encoding, encoded(in.Prefix), encoded(given(in.Delimiter)), encoded(in.StartAfter)
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
	result := s3response.ListObjectsResult{Name: in.Bucket, Prefix: in.Prefix, Delimiter: given(in.Delimiter), Marker: in.Marker, MaxKeys: in.MaxKeys}
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
		encode(l)
		result.EncodingType, result.Prefix, result.Delimiter, result.Marker = encoding, encoded(in.Prefix), encoded(given(in.Delimiter)), encoded(in.Marker)
		result.NextMarker = encoded(result.NextMarker)
	}
	result.IsTruncated = &truncated
	result.Contents, result.CommonPrefixes = entries(l)
	for i := range result.Contents {
		result.Contents[i].Owner = b.rootOwner()
	}
	return result, nil
}

// given returns nil for an empty text: the answer omits a delimiter that was not given.
func given(s *string) *string {
	if s == nil || *s == "" {
		return nil
	}
	return s
}

func encoded(s *string) *string {
	if s == nil {
		return nil
	}
	e := encodeName(*s)
	return &e
}

// rootOwner is the owner of every object: root is the only account.
func (b *backend) rootOwner() *types.Owner {
	return &types.Owner{ID: &b.cfg.RootAccessKey, DisplayName: &b.cfg.RootAccessKey}
}
