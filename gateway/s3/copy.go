package s3

import (
	"context"
	"crypto/md5" //nolint:gosec // S3 defines the ETag as the MD5 of the bytes
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	front "github.com/versity/versitygw/backend"
	"github.com/versity/versitygw/s3err"
	"github.com/versity/versitygw/s3response"

	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/s3/s3error"
)

const maxCopySize = 5 << 30 // bytes, the limit of S3

// CopyObject implements versitygw's Backend: it reads the source, which needs no grant, and uploads the copy, which
// does. The bytes go through the gateway into a blob of their own, so objects never share one.
func (b *backend) CopyObject(ctx context.Context, in s3response.CopyObjectInput) (s3response.CopyObjectOutput, error) {
	r := b.requestOf(ctx)
	bucket, key := strings.Clone(*in.Bucket), strings.Clone(*in.Key)
	out, err := b.copyObject(r, bucket, key, in)
	if err != nil {
		return s3response.CopyObjectOutput{}, b.fail(r, bucket, "CopyObject", err)
	}
	return out, nil
}

func (b *backend) copyObject(r request, bucket, key string, in s3response.CopyObjectInput) (s3response.CopyObjectOutput, error) {
	stages, what := r.stages(), "version of "
	if stages {
		what = "stage of "
	}
	copies, source, err := b.planCopy(&r, bucket, key, in)
	change := r.change(bucket, key, objects.Conditions{})
	before := func(why error) (objects.Stored, error) { return b.writer.Before(b.base, change, stages, why) }
	of := attemptOf(change, what+*in.CopySource)
	if err != nil { // the source may be deleted, or the grant over, since an earlier attempt
		if run := b.copies.find(of); run != nil {
			return b.copyEnd(r, bucket, run)
		}
		v, err := before(err)
		return copyAnswer(r, v, source), err
	}
	run, err := b.copies.join(of, source, func(reading context.Context, id blob.ID) copied {
		err := errNotYet
		var v objects.Stored
		if source.Size > minLook {
			v, err = before(err)
		}
		if errors.Is(err, errNotYet) {
			v, err = copies(reading, id)
		}
		if err != nil {
			v, err = before(err)
		}
		return copied{version: v, err: err}
	})
	if err != nil {
		return s3response.CopyObjectOutput{}, err
	}
	return b.copyEnd(r, bucket, run)
}

// copyEnd waits for a copy and answers, or begins a slow answer.
func (b *backend) copyEnd(r request, bucket string, run *copying) (s3response.CopyObjectOutput, error) {
	if !b.await(r, run) {
		return b.copySlowly(r, bucket, run), nil
	}
	defer b.copies.leave(run)
	return copyAnswer(r, run.result.version, run.from), run.result.err
}

// errNotYet says that a copy need not be refused, but may have been made by an earlier attempt.
var errNotYet = errors.New("not copied yet")

// minLook is the size, in bytes, above which a copy first looks for one that an earlier attempt made.
const minLook = 64 << 10

// copyAnswer returns the answer of a copy, and names its stage.
func copyAnswer(r request, v, source objects.Stored) s3response.CopyObjectOutput {
	if r.stages() && v.ID != [16]byte{} {
		r.tellStage(v)
	}
	etag, sums := quoted(v.ETag), checksumsOf(v.Attributes)
	return s3response.CopyObjectOutput{VersionId: v.ShownID(), CopySourceVersionId: source.ShownID(), CopyObjectResult: &s3response.CopyObjectResult{
		ETag: &etag, LastModified: &v.CreatedAt, ChecksumCRC32: sums.crc32, ChecksumCRC32C: sums.crc32c, ChecksumCRC64NVME: sums.crc64nvme,
		ChecksumSHA1: sums.sha1, ChecksumSHA256: sums.sha256, ChecksumType: sums.kind,
	}}
}

// copySlowly returns the headers of a slow answer, which name the version or stage before it is made.
func (b *backend) copySlowly(r request, bucket string, run *copying) s3response.CopyObjectOutput {
	keep, err := b.catalog.Keep(b.base, bucket)
	named := objects.Stored{ID: run.id, Kept: !r.stages() && err == nil && keep != objects.Keep{}}
	b.answerSlowly(r, run, func(made copied) (any, error) {
		v, err := made.version, made.err
		if err == nil && (v.Kept != named.Kept || v.ID != named.ID && (v.Kept || r.stages())) {
			err = s3error.Unavailable(s3error.MessageCopied)
		}
		if err != nil {
			return nil, b.fail(r, bucket, "CopyObject", err)
		}
		return copyAnswer(r, v, run.from).CopyObjectResult, nil
	})
	return copyAnswer(r, named, run.from)
}

// doCopy copies, or restores. reading ends when the copy is given up; id is that of the version or stage.
type doCopy func(reading context.Context, id blob.ID) (objects.Stored, error)

// planCopy checks a copy before any byte is read. What it returns keeps nothing of the request, which may end earlier
// than the copy.
func (b *backend) planCopy(r *request, bucket, key string, in s3response.CopyObjectInput) (do doCopy, source objects.Stored, err error) {
	cond, err := putConditions(r.condition("If-Match"), r.condition("If-None-Match"))
	if err == nil {
		err = refuseUnsupported(*r)
	}
	if err == nil {
		err = b.needGrant(r, bucket, key)
	}
	if err == nil {
		err = b.goesOn(*r)
	}
	if err != nil {
		return nil, source, err
	}
	tags, err := tagsOf(in.Tagging)
	if err == nil {
		source, err = b.copySource(copySourceOf(in))
	}
	if err == nil && source.Size > maxCopySize {
		err = s3err.GetEntityTooLargeErr(source.Size, maxCopySize)
	}
	if err != nil {
		return nil, source, err
	}
	given := attributesOf(s3response.PutObjectInput{
		ContentType: in.ContentType, ContentEncoding: in.ContentEncoding, ContentDisposition: in.ContentDisposition,
		ContentLanguage: in.ContentLanguage, CacheControl: in.CacheControl, Expires: in.Expires, Metadata: in.Metadata,
	}, noBody, tags)
	if err := checkAttributes(given); err != nil {
		return nil, source, err
	}
	p := objects.Put{Change: r.change(bucket, key, cond), Size: source.Size, Stage: r.stages(), Doubted: r.expired != nil}
	attributes, replaces := source.Attributes, in.MetadataDirective == types.MetadataDirectiveReplace
	if replaces {
		attributes = given
		attributes.Tags = source.Attributes.Tags
	}
	if in.TaggingDirective == types.TaggingDirectiveReplace {
		attributes.Tags, replaces = tags, true
	}
	srcBucket, srcKey, versionID, _ := parseSource(*in.CopySource)
	if srcBucket == bucket && srcKey == key && !replaces {
		do, err = b.planRestore(p, versionID, source)
		return do, source, err
	}
	algo := strings.ToUpper(strings.Clone(string(in.ChecksumAlgorithm)))
	return func(reading context.Context, id blob.ID) (objects.Stored, error) {
		p.Version = id
		return b.copyBytes(reading, p, source, attributes, algo)
	}, source, nil
}

// copyBytes uploads the bytes of the source. algo is the algorithm of the checksum; "": that of the source's.
func (b *backend) copyBytes(reading context.Context, p objects.Put, source objects.Stored, a objects.Attributes, algo string) (objects.Stored, error) {
	bytes, err := b.reader.Open(b.base, source, 0, source.Size)
	if err != nil {
		return objects.Stored{}, unopened(source, err)
	}
	defer func() { _ = bytes.Close() }()
	data := copyBody(reading, bytes)
	if algo == "" {
		algo = source.Attributes.ChecksumAlgorithm
	}
	if err := data.compute(algo); err != nil {
		return objects.Stored{}, err
	}
	p.Body, p.Attributes = data, func() objects.Attributes {
		a.ChecksumAlgorithm, a.Checksum = data.Checksum()
		return a
	}
	return b.writer.Put(b.base, p)
}

// copyBody returns the bytes of a copy's source, until the copy is given up.
func copyBody(reading context.Context, bytes io.Reader) *body {
	return &body{r: source{Reader: bytes, reading: reading}, md5: md5.New(), inside: true} //nolint:gosec // see the import
}

// planRestore makes an older version current again. A stage cannot restore, because it would list the blobs of another
// version.
func (b *backend) planRestore(p objects.Put, versionID string, source objects.Stored) (doCopy, error) {
	switch {
	case versionID == "" || versionID == objects.NullVersion:
		return nil, s3err.GetAPIError(s3err.ErrInvalidCopyDest)
	case p.Stage:
		return nil, s3error.NotThere
	}
	return func(context.Context, blob.ID) (objects.Stored, error) {
		return b.writer.Restore(b.base, p.Change, source)
	}, nil
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
