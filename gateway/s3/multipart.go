package s3

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/versity/versitygw/s3err"
	"github.com/versity/versitygw/s3response"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/blob"
)

const (
	sqlBeginMultipart    = "SELECT objects.begin_multipart($1, $2, $3, $4, $5, $6, $7)"
	sqlPutPart           = "SELECT objects.put_part($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)"
	sqlCompleteMultipart = "SELECT " + versionColumns + " FROM objects.complete_multipart($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)"
	sqlCompleted         = "SELECT " + versionColumns + " FROM objects.completed_multipart($1, $2, $3, $4, $5, $6)"
	sqlAbortMultipart    = "SELECT objects.abort_multipart($1, $2, $3, $4, $5, $6)"

	minPartSize = 5 << 20 // bytes, of each part but the last
)

// CreateMultipartUpload implements the front's Backend. It needs the grant, so
// that a stale writer learns it early; completing the upload decides.
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
	if err := a.check(); err != nil {
		return blob.ID{}, err
	}
	encoded, err := json.Marshal(a)
	if err != nil {
		return blob.ID{}, fmt.Errorf("encode attributes: %w", err)
	}
	id := blob.NewID()
	return id, b.db.settle(b.base, exec(sqlBeginMultipart, uuid(id), *in.Bucket, *in.Key, string(encoded), r.grant.resource, int64(r.grant.token), r.grant.sealHash))
}

// UploadPart implements the front's Backend: the part becomes a pending blob.
func (b *backend) UploadPart(ctx context.Context, in *s3.UploadPartInput) (*s3.UploadPartOutput, error) {
	r := b.requestOf(ctx)
	out, err := b.uploadPart(r, strings.Clone(*in.Bucket), strings.Clone(*in.Key), in)
	if err != nil {
		return nil, b.fail(r, *in.Bucket, "UploadPart", err)
	}
	return out, nil
}

func (b *backend) uploadPart(r request, bucket, key string, in *s3.UploadPartInput) (*s3.UploadPartOutput, error) {
	upload, err := b.db.upload(b.base, bucket, key, *in.UploadId)
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
	stored, err := b.storePart(r, newPart{upload: upload, bucket: bucket, key: key, number: *in.PartNumber, size: *in.ContentLength}, body)
	if err != nil {
		return nil, err
	}
	etag, sums := quoted(stored.etag), checksumsOf(attributes{ChecksumAlgorithm: stored.algorithm, Checksum: stored.checksum})
	return &s3.UploadPartOutput{
		ETag: &etag, ChecksumCRC32: sums.crc32, ChecksumCRC32C: sums.crc32c, ChecksumCRC64NVME: sums.crc64nvme,
		ChecksumSHA1: sums.sha1, ChecksumSHA256: sums.sha256,
	}, nil
}

// newPart says which part of an upload is stored.
type newPart struct {
	upload      upload
	bucket, key string
	number      int32
	size        int64 // announced, in bytes
}

// storePart stores a part's bytes as a pending blob and adds it to its upload.
func (b *backend) storePart(r request, p newPart, body *body) (part, error) {
	if err := body.compute(p.upload.attributes.ChecksumAlgorithm); err != nil {
		return part{}, err
	}
	id, err := b.announce(r, p.bucket, p.key)
	if err != nil {
		return part{}, err
	}
	if err := b.stream(id, body, p.size); err != nil {
		b.discard(id)
		return part{}, err
	}
	stored := part{number: p.number, blob: id, size: p.size, etag: body.etag(), algorithm: body.algo, checksum: body.checksum()}
	err = b.db.settle(b.base, exec(sqlPutPart, uuid(p.upload.id), p.bucket, p.key, p.number, uuid(id), p.size, stored.etag,
		stored.algorithm, stored.checksum, r.grant.resource, int64(r.grant.token), r.grant.sealHash))
	if errors.Is(err, errGivenUp) {
		b.forget(id)
		return part{}, errGivenUp
	}
	if err != nil {
		b.giveUp(id) // where it was added after all, completing the upload will miss it and say so
		return part{}, err
	}
	return stored, nil
}

// CompleteMultipartUpload implements the front's Backend: one commit that lists
// the parts' blobs.
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
	return result, text(v.shownID()), nil
}

func (b *backend) completeMultipart(r request, in *s3.CompleteMultipartUploadInput) (version, error) {
	cond, err := putConditions(in.IfMatch, in.IfNoneMatch)
	if err == nil {
		err = b.needGrant(&r, *in.Bucket, *in.Key)
	}
	if err != nil {
		return version{}, err
	}
	upload, chosen, err := b.uploaded(in)
	if errIs(err, s3err.ErrNoSuchUpload) && r.stages() {
		return b.stagedBefore(r, in, err)
	}
	if errIs(err, s3err.ErrNoSuchUpload) {
		return b.completedBefore(r, in, err)
	}
	if err != nil {
		return version{}, err
	}
	done := staging{request: r, target: target{bucket: *in.Bucket, key: *in.Key, conditions: cond}, attributes: upload.attributes}
	var total int64
	for _, p := range chosen {
		done.blobs, done.sizes, total = append(done.blobs, uuid(p.blob)), append(done.sizes, p.size), total+p.size
	}
	if in.MpuObjectSize != nil && *in.MpuObjectSize != total {
		return version{}, s3err.GetIncorrectMpObjectSizeErr(total, *in.MpuObjectSize)
	}
	if err := done.attributes.sumUp(chosen); err != nil {
		return version{}, err
	}
	if err := compareChecksum(in, done.attributes); err != nil {
		return version{}, err
	}
	done.attributes.ChecksumType = ""
	done.etag = compositeETag(in.MultipartUpload.Parts) // which fit, so they are those of the stored parts
	if r.stages() {
		return b.recordStage(sqlStageMultipart, upload.id, done)
	}
	return b.commitParts(upload.id, done)
}

// uploaded is an upload and those of its parts that its completion lists.
func (b *backend) uploaded(in *s3.CompleteMultipartUploadInput) (upload, []part, error) {
	u, err := b.db.upload(b.base, *in.Bucket, *in.Key, *in.UploadId)
	if err != nil {
		return u, nil, err
	}
	stored, err := b.db.parts(b.base, u.id, 0, maxParts)
	if err != nil {
		return u, nil, err
	}
	chosen, err := choose(*in.UploadId, stored, in.MultipartUpload.Parts)
	if err != nil {
		// Another try may have completed it in between, and taken the parts with it.
		if _, gone := b.db.upload(b.base, *in.Bucket, *in.Key, *in.UploadId); gone != nil {
			err = gone
		}
	}
	return u, chosen, err
}

// commitParts makes what an upload's parts add up to the key's version.
func (b *backend) commitParts(upload blob.ID, c staging) (version, error) {
	encoded, err := json.Marshal(c.attributes)
	if err != nil {
		return version{}, fmt.Errorf("encode attributes: %w", err)
	}
	var v version
	err = b.decide(func(ctx context.Context, q querier) error {
		return v.scan(q.QueryRow(ctx, sqlCompleteMultipart, uuid(upload), c.bucket, c.key, c.blobs, c.sizes, c.etag, string(encoded),
			c.grant.resource, int64(c.grant.token), c.grant.sealHash, nullable(c.invocation), c.ifMatch, c.ifNoneMatch))
	})
	if err != nil {
		return version{}, err
	}
	return v, nil
}

// completedBefore answers a repetition of a request that was carried out: to
// the grant that made the version, or else to the current one.
func (b *backend) completedBefore(r request, in *s3.CompleteMultipartUploadInput, otherwise error) (version, error) {
	id, err := blob.ParseID(*in.UploadId)
	if err != nil {
		return version{}, otherwise
	}
	var v version
	err = b.db.once(b.base, func(ctx context.Context, q querier) error {
		return v.scan(q.QueryRow(ctx, sqlCompleted, uuid(id), *in.Bucket, *in.Key, r.grant.resource, int64(r.grant.token), r.grant.sealHash))
	})
	if errIs(err, s3err.ErrNoSuchUpload) || err == nil && v.ETag != compositeETag(in.MultipartUpload.Parts) {
		return version{}, otherwise
	}
	return v, err
}

// AbortMultipartUpload implements the front's Backend. Only the current holder
// may: an upload that a stale one left is the sweep's.
func (b *backend) AbortMultipartUpload(ctx context.Context, in *s3.AbortMultipartUploadInput) error {
	r := b.requestOf(ctx)
	upload, err := b.db.upload(b.base, *in.Bucket, *in.Key, *in.UploadId)
	if err == nil {
		err = b.needGrant(&r, *in.Bucket, *in.Key)
	}
	var gone [][16]byte
	if err == nil {
		err = b.db.settle(b.base, func(ctx context.Context, q querier) error {
			return q.QueryRow(ctx, sqlAbortMultipart, uuid(upload.id), *in.Bucket, *in.Key, r.grant.resource, int64(r.grant.token), r.grant.sealHash).Scan(&gone)
		})
	}
	if errors.Is(err, fence.ErrUnknown) && errIs(err, s3err.ErrNoSuchUpload) {
		return nil // the try whose answer was lost aborted it; its blobs are the sweep's
	}
	if err != nil {
		return b.fail(r, *in.Bucket, "AbortMultipartUpload", err)
	}
	for _, id := range gone {
		b.erase(id)
	}
	return nil
}
