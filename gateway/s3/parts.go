package s3

import (
	"context"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/versity/versitygw/s3err"
	"github.com/versity/versitygw/s3response"

	"github.com/fencegate/fencegate/gateway/objects"
)

// checksumType is the type of the object's checksum. Uploads begun by releases without a choice do not record it.
func checksumType(upload objects.Attributes) types.ChecksumType {
	if upload.ChecksumType == "" {
		return types.ChecksumTypeComposite
	}
	return types.ChecksumType(upload.ChecksumType)
}

// choose returns the stored parts that the client lists.
func choose(uploadID string, stored []objects.Part, listed []types.CompletedPart) ([]objects.Part, error) {
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
		sums := checksumsOf(objects.Attributes{ChecksumAlgorithm: p.Algorithm, Checksum: p.Checksum})
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
		sums := checksumsOf(objects.Attributes{ChecksumAlgorithm: p.Algorithm, Checksum: p.Checksum})
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

const minPartSize = 5 << 20 // bytes, of each part but the last
