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

// GetObjectAttributes implements versitygw's Backend. versitygw selects the attributes that the client asked for.
func (b *backend) GetObjectAttributes(ctx context.Context, in *s3.GetObjectAttributesInput) (s3response.GetObjectAttributesResponse, error) {
	r := b.requestOf(ctx)
	out, err := b.attributes(r, in)
	if err != nil {
		return s3response.GetObjectAttributesResponse{}, b.fail(r, *in.Bucket, "GetObjectAttributes", err)
	}
	return out, nil
}

func (b *backend) attributes(r request, in *s3.GetObjectAttributesInput) (s3response.GetObjectAttributesResponse, error) {
	v, err := b.reader.Find(b.base, *in.Bucket, *in.Key, *in.VersionId)
	if err != nil {
		return s3response.GetObjectAttributesResponse{}, err
	}
	out := s3response.GetObjectAttributesResponse{
		ETag: &v.ETag, ObjectSize: &v.Size, StorageClass: types.StorageClassStandard, LastModified: &v.CreatedAt, VersionId: v.ShownID(),
	}
	if sums := checksumsOf(v.Attributes); sums.kind != "" {
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
			c = checksumsOf(objects.Attributes{ChecksumAlgorithm: v.Attributes.ChecksumAlgorithm, Checksum: sums[i]})
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
