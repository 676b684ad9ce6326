package s3

import (
	"context"
	"errors"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/versity/versitygw/s3err"
	"github.com/versity/versitygw/s3response"

	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/gateway/objects"
)

// CreateMultipartUpload implements versitygw's Backend. It needs the grant, so that a stale writer fails early; the
// completion of the upload decides.
func (b *backend) CreateMultipartUpload(ctx context.Context, in s3response.CreateMultipartUploadInput) (s3response.InitiateMultipartUploadResult, error) {
	r := b.requestOf(ctx)
	id, err := b.createMultipart(r, in)
	if err != nil {
		return s3response.InitiateMultipartUploadResult{}, b.fail(r, *in.Bucket, "CreateMultipartUpload", err)
	}
	return s3response.InitiateMultipartUploadResult{Bucket: *in.Bucket, Key: *in.Key, UploadId: id.String()}, nil
}

func (b *backend) createMultipart(r request, in s3response.CreateMultipartUploadInput) (blob.ID, error) {
	if err := refuseUnsupported(r); err != nil {
		return blob.ID{}, err
	}
	tags, err := tagsOf(in.Tagging)
	if err != nil {
		return blob.ID{}, err
	}
	sums := &body{algo: strings.ToUpper(strings.Clone(string(in.ChecksumAlgorithm)))}
	if err := sums.supported(); sums.algo != "" && err != nil {
		return blob.ID{}, err
	}
	if err := b.needGrant(&r, *in.Bucket, *in.Key); err != nil {
		return blob.ID{}, err
	}
	a := attributesOf(s3response.PutObjectInput{
		ContentType: in.ContentType, ContentEncoding: in.ContentEncoding, ContentDisposition: in.ContentDisposition,
		ContentLanguage: in.ContentLanguage, CacheControl: in.CacheControl, Expires: in.Expires, Metadata: in.Metadata,
	}, sums, tags)
	a.ChecksumType = strings.Clone(string(in.ChecksumType))
	if err := checkAttributes(a); err != nil {
		return blob.ID{}, err
	}
	return b.catalog.BeginUpload(b.base, r.change(*in.Bucket, *in.Key, objects.Conditions{}), a)
}

// UploadPart implements versitygw's Backend: the part becomes a pending blob.
func (b *backend) UploadPart(ctx context.Context, in *s3.UploadPartInput) (*s3.UploadPartOutput, error) {
	r := b.requestOf(ctx)
	out, err := b.uploadPart(r, strings.Clone(*in.Bucket), strings.Clone(*in.Key), in)
	if err != nil {
		return nil, b.fail(r, *in.Bucket, "UploadPart", err)
	}
	return out, nil
}

func (b *backend) uploadPart(r request, bucket, key string, in *s3.UploadPartInput) (*s3.UploadPartOutput, error) {
	upload, err := b.catalog.Upload(b.base, bucket, key, *in.UploadId)
	if err == nil {
		err = b.needGrant(&r, bucket, key)
	}
	if err != nil {
		return nil, err
	}
	if in.ContentLength == nil || *in.ContentLength < 0 {
		return nil, s3err.GetAPIError(s3err.ErrMissingContentLength)
	}
	body, err := newBody(s3response.PutObjectInput{
		Body: in.Body, ChecksumAlgorithm: in.ChecksumAlgorithm, ChecksumCRC32: in.ChecksumCRC32, ChecksumCRC32C: in.ChecksumCRC32C,
		ChecksumCRC64NVME: in.ChecksumCRC64NVME, ChecksumSHA1: in.ChecksumSHA1, ChecksumSHA256: in.ChecksumSHA256, ChecksumSHA512: in.ChecksumSHA512,
		ChecksumMD5: in.ChecksumMD5, ChecksumXXHASH64: in.ChecksumXXHASH64, ChecksumXXHASH3: in.ChecksumXXHASH3, ChecksumXXHASH128: in.ChecksumXXHASH128,
	})
	if err != nil {
		return nil, err
	}
	stored, err := b.storePart(upload, objects.NewPart{
		Change: r.change(bucket, key, objects.Conditions{}), Number: *in.PartNumber, Size: *in.ContentLength,
	}, body)
	if err != nil {
		return nil, err
	}
	etag, sums := quoted(stored.ETag), checksumsOf(objects.Attributes{ChecksumAlgorithm: stored.Algorithm, Checksum: stored.Checksum})
	return &s3.UploadPartOutput{
		ETag: &etag, ChecksumCRC32: sums.crc32, ChecksumCRC32C: sums.crc32c, ChecksumCRC64NVME: sums.crc64nvme,
		ChecksumSHA1: sums.sha1, ChecksumSHA256: sums.sha256,
	}, nil
}

// storePart stores a part, with a checksum of the upload's algorithm.
func (b *backend) storePart(u objects.Upload, p objects.NewPart, body *body) (objects.Part, error) {
	if err := body.compute(u.Attributes.ChecksumAlgorithm); err != nil {
		return objects.Part{}, err
	}
	p.Upload, p.Body = u.ID, body
	return b.writer.PutPart(b.base, p)
}

// CompleteMultipartUpload implements versitygw's Backend. One commit lists the parts' blobs.
func (b *backend) CompleteMultipartUpload(ctx context.Context, in *s3.CompleteMultipartUploadInput) (s3response.CompleteMultipartUploadResult, string, error) {
	r := b.requestOf(ctx)
	v, err := b.completeMultipart(r, in)
	if err != nil {
		return s3response.CompleteMultipartUploadResult{}, "", b.fail(r, *in.Bucket, "CompleteMultipartUpload", err)
	}
	etag, sums := quoted(v.ETag), checksumsOf(v.Attributes)
	result := s3response.CompleteMultipartUploadResult{
		Bucket: in.Bucket, Key: in.Key, ETag: &etag,
		ChecksumCRC32: sums.crc32, ChecksumCRC32C: sums.crc32c, ChecksumCRC64NVME: sums.crc64nvme, ChecksumSHA1: sums.sha1, ChecksumSHA256: sums.sha256,
	}
	if sums.kind != "" {
		result.ChecksumType = &sums.kind
	}
	return result, text(v.ShownID()), nil
}

func (b *backend) completeMultipart(r request, in *s3.CompleteMultipartUploadInput) (objects.Stored, error) {
	cond, err := putConditions(in.IfMatch, in.IfNoneMatch)
	if err == nil {
		err = b.needGrant(&r, *in.Bucket, *in.Key)
	}
	if err != nil {
		return objects.Stored{}, err
	}
	upload, chosen, err := b.uploaded(in)
	change := r.change(*in.Bucket, *in.Key, cond)
	if errors.Is(err, objects.ErrNoUpload) {
		return b.completedBefore(r, change, in, err)
	}
	if err != nil {
		return objects.Stored{}, err
	}
	done := objects.Completion{Change: change, Upload: upload.ID, Parts: chosen, Attributes: upload.Attributes, Stage: r.stages()}
	var total int64
	for _, p := range chosen {
		total += p.Size
	}
	if in.MpuObjectSize != nil && *in.MpuObjectSize != total {
		return objects.Stored{}, s3err.GetIncorrectMpObjectSizeErr(total, *in.MpuObjectSize)
	}
	if err := sumUp(&done.Attributes, chosen); err != nil {
		return objects.Stored{}, err
	}
	if err := compareChecksum(in, done.Attributes); err != nil {
		return objects.Stored{}, err
	}
	done.Attributes.ChecksumType = ""
	done.ETag = compositeETag(in.MultipartUpload.Parts) // the listed parts match the stored ones
	v, err := b.writer.Complete(b.base, done)
	if err == nil && done.Stage {
		r.tellStage(v)
	}
	return v, err
}

// uploaded returns an upload and the parts that its completion lists.
func (b *backend) uploaded(in *s3.CompleteMultipartUploadInput) (objects.Upload, []objects.Part, error) {
	u, err := b.catalog.Upload(b.base, *in.Bucket, *in.Key, *in.UploadId)
	if err != nil {
		return u, nil, err
	}
	stored, err := b.catalog.Parts(b.base, u.ID, 0, objects.MaxParts)
	if err != nil {
		return u, nil, err
	}
	chosen, err := choose(*in.UploadId, stored, in.MultipartUpload.Parts)
	if err != nil {
		// Another attempt may have completed it in the meantime, and taken the parts.
		if _, gone := b.catalog.Upload(b.base, *in.Bucket, *in.Key, *in.UploadId); gone != nil {
			err = gone
		}
	}
	return u, chosen, err
}

// completedBefore answers the repetition of a request that was carried out or staged: for the grant that did it, or
// else for the current one.
func (b *backend) completedBefore(r request, change objects.Change, in *s3.CompleteMultipartUploadInput, otherwise error) (objects.Stored, error) {
	etag := compositeETag(in.MultipartUpload.Parts)
	if !r.stages() {
		return b.catalog.Completed(b.base, change, *in.UploadId, etag, otherwise)
	}
	v, err := b.catalog.StagedUpload(b.base, change, *in.UploadId, etag, otherwise)
	if err == nil {
		r.tellStage(v)
	}
	return v, err
}

// AbortMultipartUpload implements versitygw's Backend. Only the current holder may abort; the sweep deletes uploads
// that a stale holder left.
func (b *backend) AbortMultipartUpload(ctx context.Context, in *s3.AbortMultipartUploadInput) error {
	r := b.requestOf(ctx)
	err := b.needGrant(&r, *in.Bucket, *in.Key)
	if err == nil {
		err = b.writer.Abort(b.base, r.change(*in.Bucket, *in.Key, objects.Conditions{}), *in.UploadId)
	}
	if err != nil {
		return b.fail(r, *in.Bucket, "AbortMultipartUpload", err)
	}
	return nil
}
