package s3

import (
	"context"
	"crypto/md5" //nolint:gosec // S3 defines the ETag of a multipart object by the MD5 of its parts
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"net/http"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/versity/versitygw/s3api/utils"
	"github.com/versity/versitygw/s3err"
	"github.com/versity/versitygw/s3response"

	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/s3/s3error"
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
	tags, err := parseTags(in.Tagging)
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
	}, tags)
	a.ChecksumAlgorithm, a.ChecksumType = sums.algo, strings.Clone(string(in.ChecksumType))
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
	etag, sums := quoted(stored.ETag), checksumsOf(stored.Algorithm, stored.Checksum)
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

const minPartSize = 5 << 20 // bytes, of each part but the last

// ListParts implements versitygw's Backend.
func (b *backend) ListParts(ctx context.Context, in *s3.ListPartsInput) (s3response.ListPartsResult, error) {
	r := b.requestOf(ctx)
	result := s3response.ListPartsResult{Bucket: *in.Bucket, Key: *in.Key, UploadID: *in.UploadId, StorageClass: types.StorageClassStandard}
	after := 0
	if in.PartNumberMarker != nil && *in.PartNumberMarker != "" {
		var err error
		if after, err = strconv.Atoi(*in.PartNumberMarker); err != nil || after < 0 {
			return result, s3err.GetAPIError(s3err.ErrInvalidRequest)
		}
	}
	limit := min(int(*in.MaxParts), maxList)
	u, err := b.catalog.Upload(b.base, *in.Bucket, *in.Key, *in.UploadId)
	var stored []objects.Part
	if err == nil {
		stored, err = b.catalog.Parts(b.base, u.ID, after, limit+1)
	}
	if err != nil {
		return result, b.fail(r, *in.Bucket, "ListParts", err)
	}
	result.PartNumberMarker, result.MaxParts, result.IsTruncated = after, limit, len(stored) > limit
	for _, p := range stored[:min(len(stored), limit)] {
		sums := checksumsOf(p.Algorithm, p.Checksum)
		result.Parts = append(result.Parts, s3response.Part{
			PartNumber: int(p.Number), LastModified: p.Changed, ETag: quoted(p.ETag), Size: p.Size, ChecksumCRC32: sums.crc32,
			ChecksumCRC32C: sums.crc32c, ChecksumSHA1: sums.sha1, ChecksumSHA256: sums.sha256, ChecksumCRC64NVME: sums.crc64nvme,
		})
		result.NextPartNumberMarker = int(p.Number)
	}
	if u.Attributes.ChecksumAlgorithm != "" {
		result.ChecksumAlgorithm, result.ChecksumType = types.ChecksumAlgorithm(u.Attributes.ChecksumAlgorithm), checksumType(u.Attributes)
	}
	return result, nil
}

// CompleteMultipartUpload implements versitygw's Backend. One commit lists the parts' blobs.
func (b *backend) CompleteMultipartUpload(ctx context.Context, in *s3.CompleteMultipartUploadInput) (s3response.CompleteMultipartUploadResult, string, error) {
	r := b.requestOf(ctx)
	v, err := b.completeMultipart(r, in)
	if err != nil {
		return s3response.CompleteMultipartUploadResult{}, "", b.fail(r, *in.Bucket, "CompleteMultipartUpload", err)
	}
	etag, sums := quoted(v.ETag), checksumsOf(v.Attributes.ChecksumAlgorithm, v.Attributes.Checksum)
	result := s3response.CompleteMultipartUploadResult{
		Bucket: in.Bucket, Key: in.Key, ETag: &etag,
		ChecksumCRC32: sums.crc32, ChecksumCRC32C: sums.crc32c, ChecksumCRC64NVME: sums.crc64nvme, ChecksumSHA1: sums.sha1, ChecksumSHA256: sums.sha256,
	}
	if sums.kind != "" {
		result.ChecksumType = &sums.kind
	}
	return result, aws.ToString(v.ShownID()), nil
}

func (b *backend) completeMultipart(r request, in *s3.CompleteMultipartUploadInput) (objects.Stored, error) {
	cond, err := putConditions(in.IfMatch, in.IfNoneMatch)
	if err == nil {
		err = b.needGrant(&r, *in.Bucket, *in.Key)
	}
	if err != nil {
		return objects.Stored{}, err
	}
	upload, chosen, err := b.listedParts(in)
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
	if err := sumParts(&done.Attributes, chosen); err != nil {
		return objects.Stored{}, err
	}
	if err := compareChecksum(in, done.Attributes); err != nil {
		return objects.Stored{}, err
	}
	done.Attributes.ChecksumType = ""
	done.ETag = compositeETag(in.MultipartUpload.Parts) // the listed parts match the stored ones
	v, err := b.writer.Complete(b.base, done)
	if err == nil && done.Stage {
		r.nameStage(v)
	}
	return v, err
}

// listedParts returns an upload and the parts that its completion lists.
func (b *backend) listedParts(in *s3.CompleteMultipartUploadInput) (objects.Upload, []objects.Part, error) {
	u, err := b.catalog.Upload(b.base, *in.Bucket, *in.Key, *in.UploadId)
	if err != nil {
		return u, nil, err
	}
	stored, err := b.catalog.Parts(b.base, u.ID, 0, objects.MaxParts)
	if err != nil {
		return u, nil, err
	}
	chosen, err := chooseParts(*in.UploadId, stored, in.MultipartUpload.Parts)
	if err != nil {
		// Another attempt may have completed it in the meantime, and taken the parts.
		if _, gone := b.catalog.Upload(b.base, *in.Bucket, *in.Key, *in.UploadId); gone != nil {
			err = gone
		}
	}
	return u, chosen, err
}

// chooseParts returns the stored parts that the client lists.
func chooseParts(uploadID string, stored []objects.Part, listed []types.CompletedPart) ([]objects.Part, error) {
	byNumber := make(map[int32]objects.Part, len(stored))
	for _, p := range stored {
		byNumber[p.Number] = p
	}
	var chosen []objects.Part
	last := int32(0)
	for _, want := range listed {
		if want.PartNumber == nil || want.ETag == nil {
			return nil, s3err.GetAPIError(s3err.ErrMalformedXML)
		}
		if *want.PartNumber <= last {
			return nil, s3err.GetAPIError(s3err.ErrInvalidPartOrder)
		}
		last = *want.PartNumber
	}
	for i, want := range listed {
		number := *want.PartNumber
		p, found := byNumber[number]
		sums := checksumsOf(p.Algorithm, p.Checksum)
		fits := func(given, has *string) bool { return given == nil || has != nil && *given == *has }
		if !found || strings.Trim(*want.ETag, `"`) != p.ETag || !fits(want.ChecksumCRC32, sums.crc32) || !fits(want.ChecksumCRC32C, sums.crc32c) ||
			!fits(want.ChecksumSHA1, sums.sha1) || !fits(want.ChecksumSHA256, sums.sha256) || !fits(want.ChecksumCRC64NVME, sums.crc64nvme) {
			return nil, s3err.GetInvalidPartErr(strings.Clone(uploadID), number, *want.ETag)
		}
		if p.Size < minPartSize && i < len(listed)-1 {
			return nil, s3err.GetEntityTooSmallErr(p.Size, minPartSize)
		}
		chosen = append(chosen, p)
	}
	return chosen, nil
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
		r.nameStage(v)
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

// checksumType is the type of the object's checksum. Uploads begun by releases without a choice do not record it.
func checksumType(upload objects.Attributes) types.ChecksumType {
	if upload.ChecksumType == "" {
		return types.ChecksumTypeComposite
	}
	return types.ChecksumType(upload.ChecksumType)
}

// compositeHash returns the hash for a checksum of the parts' checksums; nil if the algorithm has none.
func compositeHash(algorithm string) hash.Hash {
	if algorithm == "CRC64NVME" {
		return nil
	}
	return objects.ChecksumHash(algorithm)
}

// sumParts computes the object's checksum from its parts', with the upload's algorithm.
func sumParts(a *objects.Attributes, parts []objects.Part) error {
	if a.ChecksumAlgorithm == "" {
		return nil
	}
	a.PartChecksums = make([]string, len(parts))
	for i, p := range parts {
		a.PartChecksums[i] = p.Checksum
	}
	if a.ChecksumType == string(types.ChecksumTypeFullObject) {
		return combineCRCs(a, parts)
	}
	h := compositeHash(a.ChecksumAlgorithm)
	if h == nil {
		return fmt.Errorf("the upload uses the checksum %s, which can't be combined from the checksums of its parts", a.ChecksumAlgorithm)
	}
	for _, p := range parts {
		raw, _ := base64.StdEncoding.DecodeString(p.Checksum) // body.checksum made it
		h.Write(raw)
	}
	a.Checksum = base64.StdEncoding.EncodeToString(h.Sum(nil)) + "-" + strconv.Itoa(len(parts))
	return nil
}

// combineCRCs computes the CRC of all bytes from the parts' CRCs and lengths.
func combineCRCs(a *objects.Attributes, parts []objects.Part) (err error) {
	a.Checksum = parts[0].Checksum
	for _, p := range parts[1:] {
		if a.Checksum, err = utils.AddCRCChecksum(types.ChecksumAlgorithm(a.ChecksumAlgorithm), a.Checksum, p.Checksum, p.Size); err != nil {
			return fmt.Errorf("combine the parts' checksums: %w", err)
		}
	}
	return nil
}

// compositeETag returns the ETag of the object made of the listed parts.
func compositeETag(listed []types.CompletedPart) string {
	digest := md5.New() //nolint:gosec // see the import
	for _, p := range listed {
		if p.ETag == nil {
			continue
		}
		raw, _ := hex.DecodeString(strings.Trim(*p.ETag, `"`)) // an invalid one matches no object
		digest.Write(raw)
	}
	return hex.EncodeToString(digest.Sum(nil)) + "-" + strconv.Itoa(len(listed))
}

// compareChecksum compares the object's checksum in a completion, if any, with that of its parts. The client may omit
// the number of parts.
func compareChecksum(in *s3.CompleteMultipartUploadInput, a objects.Attributes) error {
	mismatch := func(text string) error {
		return s3error.Error{Code: "InvalidRequest", Status: http.StatusBadRequest, Message: text + " Nothing was changed."}
	}
	if begun := checksumType(a); in.ChecksumType != "" && in.ChecksumType != begun {
		return mismatch("The upload's checksum type is " + string(begun) + ", and the completion says " + string(in.ChecksumType) + ".")
	}
	for algo, given := range map[string]*string{
		"CRC32": in.ChecksumCRC32, "CRC32C": in.ChecksumCRC32C, "CRC64NVME": in.ChecksumCRC64NVME, "SHA1": in.ChecksumSHA1, "SHA256": in.ChecksumSHA256,
		"SHA512": in.ChecksumSHA512, "MD5": in.ChecksumMD5, "XXHASH64": in.ChecksumXXHASH64, "XXHASH3": in.ChecksumXXHASH3, "XXHASH128": in.ChecksumXXHASH128,
	} {
		if given == nil || *given == "" {
			continue
		}
		if algo != a.ChecksumAlgorithm {
			return mismatch("The completion announces a checksum " + algo + ", with which the upload was not begun.")
		}
		sum, _, _ := strings.Cut(a.Checksum, "-")
		if *given != a.Checksum && *given != sum {
			return s3err.GetBadDigestErr(a.Checksum, strings.Clone(*given))
		}
	}
	return nil
}
