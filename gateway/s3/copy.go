package s3

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
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

// minLookUp is the size, in bytes, above which a copy first looks for one that an earlier attempt made.
const minLookUp = 64 << 10

// errNotCopied says that a copy need not be refused, but may have been made by an earlier attempt.
var errNotCopied = errors.New("not copied yet")

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
	do, source, err := b.planCopy(&r, bucket, key, in)
	change := r.change(bucket, key, objects.Conditions{})
	before := func(why error) (objects.Stored, error) { return b.writer.Before(b.base, change, stages, why) }
	of := copyAttemptOf(change, what+*in.CopySource)
	if err != nil { // the source may be deleted, or the grant over, since an earlier attempt
		if run := b.copies.find(of); run != nil {
			return b.finishCopy(r, bucket, run)
		}
		v, err := before(err)
		return copyAnswer(r, v, source), err
	}
	run, err := b.copies.join(of, source, func(reading context.Context, id blob.ID) copyResult {
		err := errNotCopied
		var v objects.Stored
		if source.Size > minLookUp {
			v, err = before(err)
		}
		if errors.Is(err, errNotCopied) {
			v, err = do(reading, id)
		}
		if err != nil {
			v, err = before(err)
		}
		return copyResult{version: v, err: err}
	})
	if err != nil {
		return s3response.CopyObjectOutput{}, err
	}
	return b.finishCopy(r, bucket, run)
}

// finishCopy waits for a copy and answers, or begins a slow answer.
func (b *backend) finishCopy(r request, bucket string, run *copyRun) (s3response.CopyObjectOutput, error) {
	if !b.copies.await(r, run) {
		return b.copySlowly(r, bucket, run), nil
	}
	defer b.copies.leave(run)
	return copyAnswer(r, run.result.version, run.from), run.result.err
}

// copyAnswer returns the answer of a copy, and names its stage.
func copyAnswer(r request, v, source objects.Stored) s3response.CopyObjectOutput {
	if r.stages() && v.ID != [16]byte{} {
		r.nameStage(v)
	}
	etag, sums := quoted(v.ETag), checksumsOf(v.Attributes.ChecksumAlgorithm, v.Attributes.Checksum)
	return s3response.CopyObjectOutput{VersionId: v.ShownID(), CopySourceVersionId: source.ShownID(), CopyObjectResult: &s3response.CopyObjectResult{
		ETag: &etag, LastModified: &v.CreatedAt, ChecksumCRC32: sums.crc32, ChecksumCRC32C: sums.crc32c, ChecksumCRC64NVME: sums.crc64nvme,
		ChecksumSHA1: sums.sha1, ChecksumSHA256: sums.sha256, ChecksumType: sums.kind,
	}}
}

// copySlowly returns the headers of a slow answer, which name the version or stage before it is made.
func (b *backend) copySlowly(r request, bucket string, run *copyRun) s3response.CopyObjectOutput {
	keep, err := b.catalog.Keep(b.base, bucket)
	named := objects.Stored{ID: run.id, Kept: !r.stages() && err == nil && keep != objects.Keep{}}
	b.copies.answerSlowly(r, run, func(made copyResult) (any, error) {
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

// copyFunc copies, or restores. reading ends when the copy is given up; id is that of the version or stage.
type copyFunc func(reading context.Context, id blob.ID) (objects.Stored, error)

// planCopy checks a copy before any byte is read. What it returns keeps nothing of the request, which may end earlier
// than the copy.
func (b *backend) planCopy(r *request, bucket, key string, in s3response.CopyObjectInput) (do copyFunc, source objects.Stored, err error) {
	cond, err := putConditions(r.condition("If-Match"), r.condition("If-None-Match"))
	if err == nil {
		err = refuseUnsupported(*r)
	}
	if err == nil {
		err = b.needGrant(r, bucket, key)
	}
	if err == nil {
		err = b.checkLease(*r)
	}
	if err != nil {
		return nil, source, err
	}
	tags, err := parseTags(in.Tagging)
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
	}, tags)
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
		return objects.Stored{}, openError(source, err)
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
	return storedBody(sourceReader{Reader: bytes, reading: reading})
}

// sourceReader reads the source of a copy, until that is given up.
type sourceReader struct {
	io.Reader

	reading context.Context //nolint:containedctx // an [io.Reader] gets none
}

func (s sourceReader) Read(p []byte) (int, error) {
	if s.reading.Err() != nil {
		return 0, errGivenUp
	}
	return s.Reader.Read(p)
}

// planRestore makes an older version current again. A stage cannot restore, because it would list the blobs of another
// version.
func (b *backend) planRestore(p objects.Put, versionID string, source objects.Stored) (copyFunc, error) {
	switch {
	case versionID == "" || versionID == objects.NullVersion:
		return nil, s3err.GetAPIError(s3err.ErrInvalidCopyDest)
	case p.Stage:
		return nil, s3error.NotImplemented
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

// copySource finds the source version and evaluates the conditions on it.
func (b *backend) copySource(source string, conditions s3.GetObjectInput) (objects.Stored, error) {
	bucket, key, versionID, err := parseSource(source)
	if err != nil {
		return objects.Stored{}, err
	}
	conditions.Bucket, conditions.Key, conditions.VersionId = &bucket, &key, &versionID
	v, _, err := b.lookUp(request{}, &conditions)
	switch e, isAPI := errors.AsType[s3err.S3Error](err); {
	case isAPI && e.StatusCode() == http.StatusNotModified:
		return v, s3err.GetAPIError(s3err.ErrPreconditionFailed)
	case errors.Is(err, objects.ErrNoBucket):
		return v, s3err.GetBucketErr(s3err.ErrNoSuchBucket, bucket)
	}
	return v, err
}

// UploadPartCopy implements versitygw's Backend: it reads the source, which needs no grant, and stores a part, which
// does.
func (b *backend) UploadPartCopy(ctx context.Context, in *s3.UploadPartCopyInput) (s3response.CopyPartResult, error) {
	r := b.requestOf(ctx)
	bucket := strings.Clone(*in.Bucket)
	out, err := b.copyPart(r, bucket, strings.Clone(*in.Key), in)
	if err != nil {
		return s3response.CopyPartResult{}, b.fail(r, bucket, "UploadPartCopy", err)
	}
	return out, nil
}

func (b *backend) copyPart(r request, bucket, key string, in *s3.UploadPartCopyInput) (s3response.CopyPartResult, error) {
	u, err := b.catalog.Upload(b.base, bucket, key, *in.UploadId)
	if err == nil {
		err = b.needGrant(&r, bucket, key)
	}
	if err != nil {
		return s3response.CopyPartResult{}, err
	}
	from, offset, length, err := b.partSource(r, in)
	p := objects.NewPart{Change: r.change(bucket, key, objects.Conditions{}), Upload: u.ID, Number: *in.PartNumber, Size: length}
	of := copyAttemptOf(p.Change, fmt.Sprintf("part %d of %s: %q of %s", p.Number, u.ID, *in.CopySourceRange, *in.CopySource))
	if err != nil { // the source may be deleted, or the grant over, since an earlier attempt
		if run := b.copies.find(of); run != nil {
			return b.finishPartCopy(r, bucket, run)
		}
		part, err := b.writer.PartBefore(b.base, p, err)
		return partAnswer(part, from), err
	}
	run, err := b.copies.join(of, from, func(reading context.Context, _ blob.ID) copyResult {
		err := errNotCopied
		var part objects.Part
		if length > minLookUp {
			part, err = b.writer.PartBefore(b.base, p, err)
		}
		if errors.Is(err, errNotCopied) {
			part, err = b.copyPartBytes(reading, u, p, from, offset)
		}
		if err != nil { // the source may have changed since an earlier attempt
			part, err = b.writer.PartBefore(b.base, p, err)
		}
		return copyResult{part: part, err: err}
	})
	if err != nil {
		return s3response.CopyPartResult{}, err
	}
	return b.finishPartCopy(r, bucket, run)
}

// copyPartBytes stores bytes of the source, from an offset on, as a part.
func (b *backend) copyPartBytes(reading context.Context, u objects.Upload, p objects.NewPart, from objects.Stored, offset int64) (objects.Part, error) {
	bytes, err := b.reader.Open(b.base, from, offset, p.Size)
	if err != nil {
		return objects.Part{}, openError(from, err)
	}
	defer func() { _ = bytes.Close() }()
	return b.storePart(u, p, copyBody(reading, bytes))
}

// finishPartCopy is finishCopy for a part.
func (b *backend) finishPartCopy(r request, bucket string, run *copyRun) (s3response.CopyPartResult, error) {
	if !b.copies.await(r, run) {
		b.copies.answerSlowly(r, run, func(made copyResult) (any, error) {
			if made.err != nil {
				return nil, b.fail(r, bucket, "UploadPartCopy", made.err)
			}
			return partAnswer(made.part, run.from), nil
		})
		return partAnswer(objects.Part{}, run.from), nil
	}
	defer b.copies.leave(run)
	return partAnswer(run.result.part, run.from), run.result.err
}

// partSource finds the source of a part, and which of its bytes are copied.
func (b *backend) partSource(r request, in *s3.UploadPartCopyInput) (from objects.Stored, offset, length int64, err error) {
	if err = b.checkLease(r); err == nil {
		from, err = b.copySource(*in.CopySource, s3.GetObjectInput{
			IfMatch: in.CopySourceIfMatch, IfNoneMatch: in.CopySourceIfNoneMatch,
			IfModifiedSince: in.CopySourceIfModifiedSince, IfUnmodifiedSince: in.CopySourceIfUnmodifiedSince,
		})
	}
	if err == nil {
		offset, length, err = copyRange(from.Size, *in.CopySourceRange)
	}
	return from, offset, length, err
}

func partAnswer(p objects.Part, from objects.Stored) s3response.CopyPartResult {
	etag, sums := quoted(p.ETag), checksumsOf(p.Algorithm, p.Checksum)
	return s3response.CopyPartResult{
		ETag: &etag, LastModified: time.Now(), ChecksumCRC32: sums.crc32, ChecksumCRC32C: sums.crc32c, ChecksumCRC64NVME: sums.crc64nvme,
		ChecksumSHA1: sums.sha1, ChecksumSHA256: sums.sha256, CopySourceVersionId: aws.ToString(from.ShownID()),
	}
}

// copyRange parses "bytes=first-last", which must lie inside the source. Without a range it returns the whole source.
func copyRange(size int64, text string) (offset, length int64, err error) {
	if strings.HasSuffix(text, "-") {
		return 0, 0, s3err.GetInvalidArgumentErr(s3err.InvalidArgCopySourceRange, strings.Clone(text))
	}
	offset, length, err = front.ParseCopySourceRange(size, text)
	switch {
	case err != nil:
		return 0, 0, err
	case offset < 0 || length < 0:
		return 0, 0, s3err.GetInvalidArgumentErr(s3err.InvalidArgCopySourceRange, strings.Clone(text))
	case length > maxCopySize:
		return 0, 0, s3err.GetEntityTooLargeErr(length, maxCopySize)
	}
	return offset, length, nil
}
