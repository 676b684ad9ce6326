package s3

import (
	"context"
	"encoding/base64"
	"net/url"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/jackc/pgx/v5"
	"github.com/versity/versitygw/s3response"

	"github.com/fencegate/fencegate/gateway/s3/s3error"
)

const sqlList = `SELECT entry, is_prefix, coalesce(size, 0), coalesce(etag, ''), coalesce(modified_at, 'epoch')
	FROM objects.list($1, $2, $3, $4, $5)`

const maxList = 1000 // entries of one answer

// listing is a page of a bucket's keys and common prefixes.
type listing struct {
	objects  []s3response.Object
	prefixes []types.CommonPrefix
	count    int32
	last     string // the entry after which the next page begins; empty on the last page
}

// list reads one page: at most limit entries above after.
func (d database) list(ctx context.Context, bucket, prefix, delimiter, after string, limit int) (listing, error) {
	var l listing
	if _, err := d.rule(ctx, bucket); err != nil || limit == 0 {
		return l, err
	}
	err := d.once(ctx, func(ctx context.Context, q querier) error {
		l = listing{}
		rows, err := q.Query(ctx, sqlList, bucket, prefix, delimiter, after, limit+1)
		if err != nil {
			return err
		}
		var entry, etag, previous string
		var isPrefix bool
		var size int64
		var modified time.Time
		_, err = pgx.ForEachRow(rows, []any{&entry, &isPrefix, &size, &etag, &modified}, func() error {
			if int(l.count) == limit {
				l.last = previous
				return nil
			}
			l.count++
			previous = entry
			name := entry
			if isPrefix {
				l.prefixes = append(l.prefixes, types.CommonPrefix{Prefix: &name})
				return nil
			}
			bytes, at, tag := size, modified, quoted(etag)
			l.objects = append(l.objects, s3response.Object{Key: &name, Size: &bytes, ETag: &tag, LastModified: &at, StorageClass: types.ObjectStorageClassStandard})
			return nil
		})
		return err
	})
	return l, err
}

// encode percent-encodes the names for clients that ask for it.
func (l listing) encode() {
	for _, o := range l.objects {
		*o.Key = encodeName(*o.Key)
	}
	for _, p := range l.prefixes {
		*p.Prefix = encodeName(*p.Prefix)
	}
}

var encodeRest = strings.NewReplacer("+", "%20", "%2F", "/")

func encodeName(s string) string { return encodeRest.Replace(url.QueryEscape(s)) }

// encoding reads the encoding-type, which the front does not pass on.
func (r request) encoding() (types.EncodingType, error) {
	switch t := r.query("encoding-type"); t {
	case "":
		return "", nil
	case "url":
		return types.EncodingTypeUrl, nil
	}
	return "", s3error.Error{Code: "InvalidArgument", Status: 400, Message: "Invalid Encoding Method specified in Request"}
}

// ListObjectsV2 implements the front's Backend.
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
		if err != nil || !validText(string(raw)) {
			return result, s3error.Error{Code: "InvalidArgument", Status: 400, Message: "The continuation token provided is incorrect"}
		}
		after = string(raw)
	}
	l, err := b.db.list(b.base, *in.Bucket, *in.Prefix, *in.Delimiter, after, limit)
	if err != nil {
		return result, b.fail(r, *in.Bucket, "ListObjectsV2", err)
	}
	truncated := l.last != ""
	if truncated {
		next := base64.RawURLEncoding.EncodeToString([]byte(l.last))
		result.NextContinuationToken = &next
	}
	if encoding != "" {
		l.encode()
		result.EncodingType, result.Prefix, result.Delimiter, result.StartAfter = encoding, encoded(in.Prefix), encoded(given(in.Delimiter)), encoded(in.StartAfter)
	}
	result.Contents, result.CommonPrefixes, result.KeyCount, result.IsTruncated = l.objects, l.prefixes, &l.count, &truncated
	if in.FetchOwner != nil && *in.FetchOwner {
		for i := range result.Contents {
			result.Contents[i].Owner = b.rootOwner()
		}
	}
	return result, nil
}

// ListObjects implements the front's Backend.
func (b *backend) ListObjects(ctx context.Context, in *s3.ListObjectsInput) (s3response.ListObjectsResult, error) {
	r := b.requestOf(ctx)
	result := s3response.ListObjectsResult{Name: in.Bucket, Prefix: in.Prefix, Delimiter: given(in.Delimiter), Marker: in.Marker, MaxKeys: in.MaxKeys}
	encoding, err := r.encoding()
	if err != nil {
		return result, err
	}
	l, err := b.db.list(b.base, *in.Bucket, *in.Prefix, *in.Delimiter, *in.Marker, min(int(*in.MaxKeys), maxList))
	if err != nil {
		return result, b.fail(r, *in.Bucket, "ListObjects", err)
	}
	truncated := l.last != ""
	if truncated && *in.Delimiter != "" { // without a delimiter clients go on from the last key
		result.NextMarker = &l.last
	}
	if encoding != "" {
		l.encode()
		result.EncodingType, result.Prefix, result.Delimiter, result.Marker = encoding, encoded(in.Prefix), encoded(given(in.Delimiter)), encoded(in.Marker)
		result.NextMarker = encoded(result.NextMarker)
	}
	for i := range l.objects {
		l.objects[i].Owner = b.rootOwner()
	}
	result.Contents, result.CommonPrefixes, result.IsTruncated = l.objects, l.prefixes, &truncated
	return result, nil
}

// given is nil for an empty text: a delimiter that was not given is not in the answer.
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

// rootOwner is of every object: there are no accounts beside root.
func (b *backend) rootOwner() *types.Owner {
	return &types.Owner{ID: &b.cfg.RootAccessKey, DisplayName: &b.cfg.RootAccessKey}
}
