package s3

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	front "github.com/versity/versitygw/backend"
	"github.com/versity/versitygw/s3err"
	"github.com/versity/versitygw/s3response"

	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/gateway/objects"
)

// readTries bounds the tries of a read: a sweep can delete a blob between the look-up of the pointer and the opening;
// the pointer then has a newer version.
const readTries = 3

// GetObject implements versitygw's Backend. It looks up the pointer before it reads the first byte, so no transaction
// waits for a slow reader.
func (b *backend) GetObject(ctx context.Context, in *s3.GetObjectInput) (*s3.GetObjectOutput, error) {
	r := b.requestOf(ctx)
	out, err := b.get(r, in)
	if err != nil {
		return nil, b.fail(r, *in.Bucket, "GetObject", err)
	}
	return out, nil
}

func (b *backend) get(req request, in *s3.GetObjectInput) (*s3.GetObjectOutput, error) {
	for try := 1; ; try++ {
		v, part, err := b.lookUp(req, in)
		if err != nil {
			return nil, err
		}
		r, err := b.reader.Open(b.base, v, part.offset, part.length)
		if err == nil {
			return getOutput(v, part, in.ChecksumMode == types.ChecksumModeEnabled, r), nil
		}
		if !errors.Is(err, blob.ErrNotFound) || try == readTries {
			return nil, fmt.Errorf("%q in %q: %w", *in.Key, *in.Bucket, openError(v, err))
		}
		b.reader.Forget(*in.Bucket, *in.Key)
	}
}

// openError returns the error of a request that could not open a version's bytes. If a blob is missing or too short,
// the bytes are damaged: no message asks for another try, since the store has not failed.
func openError(v objects.Stored, err error) error {
	if errors.Is(err, blob.ErrNotFound) || errors.Is(err, blob.ErrSize) {
		return fmt.Errorf("the blob store lacks bytes of version %x: %w", v.ID, err)
	}
	return fmt.Errorf("%w: %w", objects.ErrStoreFailed, err)
}

// HeadObject implements versitygw's Backend.
func (b *backend) HeadObject(ctx context.Context, in *s3.HeadObjectInput) (*s3.HeadObjectOutput, error) {
	r := b.requestOf(ctx)
	v, part, err := b.lookUp(r, &s3.GetObjectInput{
		Bucket: in.Bucket, Key: in.Key, VersionId: in.VersionId, Range: in.Range, PartNumber: in.PartNumber,
		IfMatch: in.IfMatch, IfNoneMatch: in.IfNoneMatch, IfModifiedSince: in.IfModifiedSince, IfUnmodifiedSince: in.IfUnmodifiedSince,
		ChecksumMode: in.ChecksumMode,
	})
	if err != nil {
		return nil, b.fail(r, *in.Bucket, "HeadObject", err)
	}
	o := getOutput(v, part, in.ChecksumMode == types.ChecksumModeEnabled, nil)
	return &s3.HeadObjectOutput{
		AcceptRanges: o.AcceptRanges, CacheControl: o.CacheControl, ContentDisposition: o.ContentDisposition, ContentEncoding: o.ContentEncoding,
		ContentLanguage: o.ContentLanguage, ContentLength: o.ContentLength, ContentRange: o.ContentRange, ContentType: o.ContentType,
		ETag: o.ETag, ExpiresString: o.ExpiresString, LastModified: o.LastModified, Metadata: o.Metadata, PartsCount: o.PartsCount,
		ChecksumCRC32: o.ChecksumCRC32, ChecksumCRC32C: o.ChecksumCRC32C, ChecksumCRC64NVME: o.ChecksumCRC64NVME,
		ChecksumSHA1: o.ChecksumSHA1, ChecksumSHA256: o.ChecksumSHA256, ChecksumType: o.ChecksumType, TagCount: o.TagCount,
		VersionId: o.VersionId,
	}, nil
}

// extent is the range of a version to read, in bytes.
type extent struct {
	offset, length int64
	partial        bool
	parts          int32  // of a multipart object; 0 if the client did not ask for a part
	checksum       string // of the requested part, if known
}

// lookUp finds the version and the range to read, and evaluates the read's conditions.
func (b *backend) lookUp(r request, in *s3.GetObjectInput) (objects.Stored, extent, error) {
	versionID := ""
	if in.VersionId != nil {
		versionID = *in.VersionId
	}
	v, err := b.reader.Find(b.base, *in.Bucket, *in.Key, versionID)
	if err != nil {
		return v, extent{}, err
	}
	if err := checkConditions(v, in); err != nil {
		return v, extent{}, err
	}
	if in.PartNumber != nil {
		e, err := partOf(v, *in.PartNumber)
		if err == nil && in.ChecksumMode == types.ChecksumModeEnabled && v.Attributes.Checksum != "" {
			e.checksum, err = b.partChecksum(v, *in.PartNumber)
		}
		return v, e, err
	}
	wanted := ""
	if in.Range != nil && r.rangeHolds(v) {
		wanted = *in.Range
	}
	offset, length, partial, err := front.ParseObjectRange(v.Size, wanted)
	return v, extent{offset: offset, length: length, partial: partial}, err
}

// checkConditions evaluates a read's conditions. HTTP dates are in seconds, and a change in the very second of
// If-Unmodified-Since counts as unmodified.
func checkConditions(v objects.Stored, in *s3.GetObjectInput) error {
	cond := front.PreConditions{
		IfModSince: in.IfModifiedSince, IfUnmodeSince: in.IfUnmodifiedSince,
		IfMatch: matchETags(v.ETag, in.IfMatch, false), IfNoneMatch: matchETags(v.ETag, in.IfNoneMatch, true),
	}
	if cond.IfUnmodeSince != nil {
		until := cond.IfUnmodeSince.Add(1)
		cond.IfUnmodeSince = &until
	}
	err := front.EvaluatePreconditions(v.ETag, v.CreatedAt.Truncate(time.Second), cond)
	if e, ok := errors.AsType[s3err.S3Error](err); ok && e.StatusCode() == http.StatusNotModified {
		return unmodifiedError{S3Error: e, etag: v.ETag, at: v.CreatedAt}
	}
	return err
}

// matchETags returns the version's ETag if the list contains it, else the list. A weak ETag, W/"…", matches only in a
// weak comparison.
func matchETags(etag string, list *string, weak bool) *string {
	if list == nil {
		return nil
	}
	for tag := range strings.SplitSeq(*list, ",") {
		tag = strings.TrimSpace(tag)
		if weak {
			tag = strings.TrimPrefix(tag, "W/")
		}
		if tag = strings.Trim(tag, `"`); tag == etag {
			return &tag
		}
	}
	return list
}

// partOf returns the extent of one part, counted from 1.
func partOf(v objects.Stored, number int32) (extent, error) {
	count := int32(len(v.Blobs))
	if number > count {
		return extent{}, s3err.GetInvalidPartNumberRangeErr(count, number)
	}
	e := extent{length: v.BlobSizes[number-1], partial: v.Size > 0}
	if strings.Contains(v.ETag, "-") { // a multipart object
		e.parts = count
	}
	for _, size := range v.BlobSizes[:number-1] {
		e.offset += size
	}
	return e, nil
}

func getOutput(v objects.Stored, part extent, withChecksum bool, body io.ReadCloser) *s3.GetObjectOutput {
	a, bytes, etag := v.Attributes, "bytes", quoted(v.ETag)
	o := &s3.GetObjectOutput{
		AcceptRanges: &bytes, Body: body, ContentLength: &part.length, ETag: &etag, LastModified: &v.CreatedAt, Metadata: metadataIn(a.Metadata),
		ContentType: &a.ContentType, ContentEncoding: &a.ContentEncoding, ContentDisposition: &a.ContentDisposition,
		ContentLanguage: &a.ContentLanguage, CacheControl: &a.CacheControl, ExpiresString: &a.Expires, VersionId: v.ShownID(),
	}
	if tags := int32(len(a.Tags)); tags > 0 {
		o.TagCount = &tags
	}
	if part.parts > 0 {
		o.PartsCount = &part.parts
	}
	if part.partial {
		text := fmt.Sprintf("bytes %d-%d/%d", part.offset, part.offset+part.length-1, v.Size)
		o.ContentRange = &text
	}
	if withChecksum && (!part.partial || part.checksum != "") {
		sums := checksumsOf(a.ChecksumAlgorithm, a.Checksum)
		if kind := sums.kind; part.checksum != "" {
			a.Checksum = part.checksum
			sums = checksumsOf(a.ChecksumAlgorithm, a.Checksum)
			sums.kind = kind
		}
		o.ChecksumCRC32, o.ChecksumCRC32C, o.ChecksumCRC64NVME = sums.crc32, sums.crc32c, sums.crc64nvme
		o.ChecksumSHA1, o.ChecksumSHA256, o.ChecksumType = sums.sha1, sums.sha256, sums.kind
	}
	return o
}

// GetObjectAttributes implements versitygw's Backend. versitygw selects the attributes that the client asked for.
func (b *backend) GetObjectAttributes(ctx context.Context, in *s3.GetObjectAttributesInput) (s3response.GetObjectAttributesResponse, error) {
	r := b.requestOf(ctx)
	out, err := b.objectAttributes(r, in)
	if err != nil {
		return s3response.GetObjectAttributesResponse{}, b.fail(r, *in.Bucket, "GetObjectAttributes", err)
	}
	return out, nil
}

func (b *backend) objectAttributes(r request, in *s3.GetObjectAttributesInput) (s3response.GetObjectAttributesResponse, error) {
	v, err := b.reader.Find(b.base, *in.Bucket, *in.Key, *in.VersionId)
	if err != nil {
		return s3response.GetObjectAttributesResponse{}, err
	}
	out := s3response.GetObjectAttributesResponse{
		ETag: &v.ETag, ObjectSize: &v.Size, StorageClass: types.StorageClassStandard, LastModified: &v.CreatedAt, VersionId: v.ShownID(),
	}
	if sums := checksumsOf(v.Attributes.ChecksumAlgorithm, v.Attributes.Checksum); sums.kind != "" {
		out.Checksum = &types.Checksum{
			ChecksumCRC32: sums.crc32, ChecksumCRC32C: sums.crc32c, ChecksumCRC64NVME: sums.crc64nvme,
			ChecksumSHA1: sums.sha1, ChecksumSHA256: sums.sha256, ChecksumType: sums.kind,
		}
	}
	if strings.Contains(v.ETag, "-") { // a multipart object
		if out.ObjectParts, err = b.objectParts(in, v); err != nil {
			return out, err
		}
		if r.http != nil {
			r.http.SetUserValue(partsCount, len(v.Blobs))
		}
	}
	return out, nil
}

// objectParts returns one page of an object's parts, with their checksums if recorded.
func (b *backend) objectParts(in *s3.GetObjectAttributesInput, v objects.Stored) (*s3response.ObjectParts, error) {
	p := &s3response.ObjectParts{MaxParts: maxList}
	if in.MaxParts != nil {
		p.MaxParts = min(int(*in.MaxParts), maxList)
	}
	if marker := *in.PartNumberMarker; marker != "" {
		after, err := strconv.Atoi(marker)
		if err != nil || after < 0 {
			return nil, s3err.GetAPIError(s3err.ErrInvalidRequest)
		}
		p.PartNumberMarker = after
	}
	sums, err := b.reader.PartChecksums(b.base, v)
	if err != nil {
		return p, err
	}
	end := min(p.PartNumberMarker+p.MaxParts, len(v.BlobSizes))
	for i := p.PartNumberMarker; i < end; i++ {
		number := int32(i + 1)
		var c checksums
		if sums != nil {
			c = checksumsOf(v.Attributes.ChecksumAlgorithm, sums[i])
		}
		p.Parts = append(p.Parts, types.ObjectPart{
			PartNumber: &number, Size: &v.BlobSizes[i], ChecksumCRC32: c.crc32, ChecksumCRC32C: c.crc32c,
			ChecksumCRC64NVME: c.crc64nvme, ChecksumSHA1: c.sha1, ChecksumSHA256: c.sha256,
		})
		p.NextPartNumberMarker = i + 1
	}
	p.IsTruncated = end < len(v.BlobSizes)
	return p, nil
}

// partChecksum returns the checksum of one part, counted from 1; "" if none was recorded.
func (b *backend) partChecksum(v objects.Stored, number int32) (string, error) {
	sums, err := b.reader.PartChecksums(b.base, v)
	if err != nil || sums == nil {
		return "", err
	}
	return sums[number-1], nil
}

// GetObjectTagging implements versitygw's Backend.
func (b *backend) GetObjectTagging(ctx context.Context, bucket, key, versionID string) (map[string]string, error) {
	v, err := b.reader.Find(b.base, bucket, key, versionID)
	if err != nil {
		return nil, b.fail(b.requestOf(ctx), bucket, "GetObjectTagging", err)
	}
	return v.Attributes.Tags, nil
}
