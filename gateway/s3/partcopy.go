package s3

import (
	"context"
	"crypto/md5" //nolint:gosec // S3 defines the ETag as the MD5 of the bytes
	"errors"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	front "github.com/versity/versitygw/backend"
	"github.com/versity/versitygw/s3err"
	"github.com/versity/versitygw/s3response"

	"github.com/fencegate/fencegate/gateway/objects"
)

// UploadPartCopy implements versitygw's Backend: it reads the source, which needs no grant, and stores a part, which
// does.
func (b *backend) UploadPartCopy(ctx context.Context, in *s3.UploadPartCopyInput) (s3response.CopyPartResult, error) {
	r := b.requestOf(ctx)
	p, source, err := b.copyPart(r, strings.Clone(*in.Bucket), strings.Clone(*in.Key), in)
	if err != nil {
		return s3response.CopyPartResult{}, b.fail(r, *in.Bucket, "UploadPartCopy", err)
	}
	etag, sums := quoted(p.ETag), checksumsOf(objects.Attributes{ChecksumAlgorithm: p.Algorithm, Checksum: p.Checksum})
	return s3response.CopyPartResult{
		ETag: &etag, LastModified: time.Now(), ChecksumCRC32: sums.crc32, ChecksumCRC32C: sums.crc32c, ChecksumCRC64NVME: sums.crc64nvme,
		ChecksumSHA1: sums.sha1, ChecksumSHA256: sums.sha256, CopySourceVersionId: text(source.ShownID()),
	}, nil
}

func (b *backend) copyPart(r request, bucket, key string, in *s3.UploadPartCopyInput) (p objects.Part, source objects.Stored, err error) {
	u, err := b.catalog.Upload(b.base, bucket, key, *in.UploadId)
	if err == nil {
		err = b.needGrant(&r, bucket, key)
	}
	if err != nil {
		return p, source, err
	}
	source, err = b.copySource(*in.CopySource, s3.GetObjectInput{
		IfMatch: in.CopySourceIfMatch, IfNoneMatch: in.CopySourceIfNoneMatch,
		IfModifiedSince: in.CopySourceIfModifiedSince, IfUnmodifiedSince: in.CopySourceIfUnmodifiedSince,
	})
	if err != nil {
		return p, source, err
	}
	offset, length, err := copyRange(source.Size, *in.CopySourceRange)
	if err != nil {
		return p, source, err
	}
	bytes, err := b.reader.Open(b.base, source, offset, length)
	if err != nil {
		return p, source, errors.Join(objects.ErrStoreFailed, err)
	}
	defer func() { _ = bytes.Close() }()
	data := &body{r: bytes, md5: md5.New(), inside: true} //nolint:gosec // see the import
	p, err = b.storePart(u, objects.NewPart{
		Change: r.change(bucket, key, objects.Conditions{}), Number: *in.PartNumber, Size: length,
	}, data)
	return p, source, err
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
