package s3

import (
	"context"
	"crypto/md5" //nolint:gosec // S3 defines the ETag as the MD5 of the bytes
	"errors"
	"net/http"
	"net/url"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	front "github.com/versity/versitygw/backend"
	"github.com/versity/versitygw/s3err"
	"github.com/versity/versitygw/s3response"

	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/s3/s3error"
)

const maxCopySize = 5 << 30 // bytes, the limit of S3

// CopyObject implements versitygw's Backend: it reads the source, which needs no grant, and uploads the copy, which
// does. The bytes go through the gateway into a blob of their own, so objects never share one.
func (b *backend) CopyObject(ctx context.Context, in s3response.CopyObjectInput) (s3response.CopyObjectOutput, error) {
	r := b.requestOf(ctx)
	bucket, key := strings.Clone(*in.Bucket), strings.Clone(*in.Key)
	v, source, err := b.copy(r, bucket, key, in)
	if err != nil { // the source may be deleted, or the grant over, since an earlier attempt
		v, err = b.writer.Before(b.base, r.change(bucket, key, objects.Conditions{}), r.stages(), err)
		if err == nil && r.stages() {
			r.tellStage(v)
		}
	}
	if err != nil {
		return s3response.CopyObjectOutput{}, b.fail(r, *in.Bucket, "CopyObject", err)
	}
	etag, sums := quoted(v.ETag), checksumsOf(v.Attributes)
	return s3response.CopyObjectOutput{VersionId: v.ShownID(), CopySourceVersionId: source.ShownID(), CopyObjectResult: &s3response.CopyObjectResult{
		ETag: &etag, LastModified: &v.CreatedAt, ChecksumCRC32: sums.crc32, ChecksumCRC32C: sums.crc32c, ChecksumCRC64NVME: sums.crc64nvme,
		ChecksumSHA1: sums.sha1, ChecksumSHA256: sums.sha256, ChecksumType: sums.kind,
	}}, nil
}

func (b *backend) copy(r request, bucket, key string, in s3response.CopyObjectInput) (made, source objects.Stored, err error) {
	cond, err := putConditions(r.condition("If-Match"), r.condition("If-None-Match"))
	if err == nil {
		err = refuseUnsupported(r)
	}
	if err == nil {
		err = b.needGrant(&r, bucket, key)
	}
	if err != nil {
		return made, source, err
	}
	tags, err := tagsOf(in.Tagging)
	if err != nil {
		return made, source, err
	}
	source, err = b.copySource(copySourceOf(in))
	if err != nil {
		return made, source, err
	}
	if source.Size > maxCopySize {
		return made, source, s3err.GetEntityTooLargeErr(source.Size, maxCopySize)
	}
	replace := in.MetadataDirective == types.MetadataDirectiveReplace
	given := s3response.PutObjectInput{
		ContentType: in.ContentType, ContentEncoding: in.ContentEncoding, ContentDisposition: in.ContentDisposition,
		ContentLanguage: in.ContentLanguage, CacheControl: in.CacheControl, Expires: in.Expires, Metadata: in.Metadata,
	}
	if err := checkAttributes(attributesOf(given, noBody, tags)); err != nil {
		return made, source, err
	}
	srcBucket, srcKey, versionID, _ := parseSource(*in.CopySource)
	if srcBucket == bucket && srcKey == key && !replace && in.TaggingDirective != types.TaggingDirectiveReplace {
		if versionID == "" || versionID == objects.NullVersion {
			return made, source, s3err.GetAPIError(s3err.ErrInvalidCopyDest)
		}
		made, err = b.restore(r, r.change(bucket, key, cond), source)
		return made, source, err
	}
	bytes, err := b.reader.Open(b.base, source, 0, source.Size)
	if err != nil {
		return made, source, errors.Join(objects.ErrStoreFailed, err)
	}
	defer func() { _ = bytes.Close() }()
	data := &body{r: bytes, md5: md5.New(), inside: true} //nolint:gosec // see the import
	algo := strings.ToUpper(strings.Clone(string(in.ChecksumAlgorithm)))
	if algo == "" {
		algo = source.Attributes.ChecksumAlgorithm
	}
	if err := data.compute(algo); err != nil {
		return made, source, err
	}
	made, err = b.upload(r, objects.Put{Change: r.change(bucket, key, cond), Size: source.Size, Body: data, Attributes: func() objects.Attributes {
		a := source.Attributes
		if replace {
			a = attributesOf(given, data, a.Tags)
		}
		if in.TaggingDirective == types.TaggingDirectiveReplace {
			a.Tags = tags
		}
		a.ChecksumAlgorithm, a.Checksum = data.Checksum()
		return a
	}})
	return made, source, err
}

// restore makes an older version current again. A stage cannot restore, because it would list the blobs of another
// version.
func (b *backend) restore(r request, change objects.Change, source objects.Stored) (objects.Stored, error) {
	if r.stages() {
		return objects.Stored{}, s3error.NotThere
	}
	return b.writer.Restore(b.base, change, source)
}

// copySourceOf returns the source of a copy, and the conditions on it.
func copySourceOf(in s3response.CopyObjectInput) (string, s3.GetObjectInput) {
	return *in.CopySource, s3.GetObjectInput{
		IfMatch: in.CopySourceIfMatch, IfNoneMatch: in.CopySourceIfNoneMatch,
		IfModifiedSince: in.CopySourceIfModifiedSince, IfUnmodifiedSince: in.CopySourceIfUnmodifiedSince,
	}
}

// parseSource parses a copy's source. versitygw decodes it before it looks for a version id, so it can take part of a
// key for one.
func parseSource(source string) (bucket, key, versionID string, err error) {
	if bucket, _, _, err = front.ParseCopySource(source); err != nil {
		return "", "", "", err
	}
	path, id, _ := strings.Cut(source, "?versionId=")
	path, _ = url.QueryUnescape(path) // the whole source could be decoded above
	_, key, _ = strings.Cut(strings.TrimPrefix(path, "/"), "/")
	id, _ = url.QueryUnescape(id)
	return bucket, key, id, nil
}

// copySource finds the source version and evaluates the conditions on it.
func (b *backend) copySource(source string, conditions s3.GetObjectInput) (objects.Stored, error) {
	bucket, key, versionID, err := parseSource(source)
	if err != nil {
		return objects.Stored{}, err
	}
	conditions.Bucket, conditions.Key, conditions.VersionId = &bucket, &key, &versionID
	v, _, err := b.look(request{}, &conditions)
	switch e, isAPI := errors.AsType[s3err.S3Error](err); {
	case isAPI && e.StatusCode() == http.StatusNotModified:
		return v, s3err.GetAPIError(s3err.ErrPreconditionFailed)
	case errors.Is(err, objects.ErrNoBucket):
		return v, s3err.GetBucketErr(s3err.ErrNoSuchBucket, bucket)
	}
	return v, err
}

// condition returns a condition on the target, which versitygw does not pass on.
func (r request) condition(header string) *string {
	return nullable(strings.Trim(r.header(header), `"`))
}
