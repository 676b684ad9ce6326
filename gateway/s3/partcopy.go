package s3

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	front "github.com/versity/versitygw/backend"
	"github.com/versity/versitygw/s3err"
	"github.com/versity/versitygw/s3response"

	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/gateway/objects"
)

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
	of := attemptOf(p.Change, fmt.Sprintf("part %d of %s: %q of %s", p.Number, u.ID, *in.CopySourceRange, *in.CopySource))
	if err != nil { // the source may be deleted, or the grant over, since an earlier attempt
		if run := b.copies.find(of); run != nil {
			return b.partEnd(r, bucket, run)
		}
		part, err := b.writer.PartBefore(b.base, p, err)
		return partAnswer(part, from), err
	}
	run, err := b.copies.join(of, from, func(reading context.Context, _ blob.ID) copied {
		err := errNotYet
		var part objects.Part
		if length > minLook {
			part, err = b.writer.PartBefore(b.base, p, err)
		}
		if errors.Is(err, errNotYet) {
			part, err = b.copyPartBytes(reading, u, p, from, offset)
		}
		if err != nil { // the source may have changed since an earlier attempt
			part, err = b.writer.PartBefore(b.base, p, err)
		}
		return copied{part: part, err: err}
	})
	if err != nil {
		return s3response.CopyPartResult{}, err
	}
	return b.partEnd(r, bucket, run)
}

// copyPartBytes stores bytes of the source, from an offset on, as a part.
func (b *backend) copyPartBytes(reading context.Context, u objects.Upload, p objects.NewPart, from objects.Stored, offset int64) (objects.Part, error) {
	bytes, err := b.reader.Open(b.base, from, offset, p.Size)
	if err != nil {
		return objects.Part{}, unopened(from, err)
	}
	defer func() { _ = bytes.Close() }()
	return b.storePart(u, p, copyBody(reading, bytes))
}

// partEnd is copyEnd for a part.
func (b *backend) partEnd(r request, bucket string, run *copying) (s3response.CopyPartResult, error) {
	if !b.await(r, run) {
		b.answerSlowly(r, run, func(made copied) (any, error) {
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
	if err = b.goesOn(r); err == nil {
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
	etag, sums := quoted(p.ETag), checksumsOf(objects.Attributes{ChecksumAlgorithm: p.Algorithm, Checksum: p.Checksum})
	return s3response.CopyPartResult{
		ETag: &etag, LastModified: time.Now(), ChecksumCRC32: sums.crc32, ChecksumCRC32C: sums.crc32c, ChecksumCRC64NVME: sums.crc64nvme,
		ChecksumSHA1: sums.sha1, ChecksumSHA256: sums.sha256, CopySourceVersionId: text(from.ShownID()),
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
