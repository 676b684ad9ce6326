package s3

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/jackc/pgx/v5"
	"github.com/versity/versitygw/s3err"
	"github.com/versity/versitygw/s3response"

	"github.com/fencegate/fencegate/gateway/blob"
)

const (
	sqlUpload = "SELECT attributes FROM objects.uploads WHERE id = $1 AND bucket = $2 AND key = $3"
	sqlParts  = `SELECT number, blob, size, etag, checksum_algorithm, checksum, changed_at FROM objects.parts
	WHERE upload = $1 AND number > $2 ORDER BY number LIMIT $3`

	maxParts = 10_000
)

// upload is a multipart upload under way.
type upload struct {
	id         blob.ID
	attributes attributes
}

// checksumType is what the object's checksum will be. Uploads that were begun
// before there was a choice do not say it.
func (u upload) checksumType() types.ChecksumType {
	if u.attributes.ChecksumType == "" {
		return types.ChecksumTypeComposite
	}
	return types.ChecksumType(u.attributes.ChecksumType)
}

// part is a stored part of one.
type part struct {
	number              int32
	blob                [16]byte
	size                int64
	etag                string
	algorithm, checksum string
	changed             time.Time
}

func errIs(err error, code s3err.ErrorCode) bool {
	e, ok := errors.AsType[s3err.S3Error](err)
	return ok && e.BaseError() == s3err.GetAPIError(code)
}

// upload finds an upload by the id that the client names, or NoSuchUpload.
func (d database) upload(ctx context.Context, bucket, key, id string) (upload, error) {
	none := s3err.GetNoSuchUploadErr(strings.Clone(id))
	parsed, err := blob.ParseID(id)
	if err != nil {
		return upload{}, none
	}
	u := upload{id: parsed}
	var text []byte
	err = d.once(ctx, func(ctx context.Context, q querier) error {
		return q.QueryRow(ctx, sqlUpload, uuid(parsed), bucket, key).Scan(&text)
	})
	if err = noRows(err, none); err != nil {
		return upload{}, err
	}
	if err := json.Unmarshal(text, &u.attributes); err != nil {
		return upload{}, fmt.Errorf("read the attributes of upload %s: %w", parsed, err)
	}
	return u, nil
}

// parts lists the parts above a number.
func (d database) parts(ctx context.Context, id blob.ID, above, limit int) ([]part, error) {
	var all []part
	err := d.once(ctx, func(ctx context.Context, q querier) error {
		all = nil
		rows, err := q.Query(ctx, sqlParts, uuid(id), above, limit)
		if err != nil {
			return err
		}
		var p part
		_, err = pgx.ForEachRow(rows, []any{&p.number, &p.blob, &p.size, &p.etag, &p.algorithm, &p.checksum, &p.changed}, func() error {
			all = append(all, p)
			return nil
		})
		return err
	})
	return all, err
}

// choose finds the parts that the client lists among those that are stored.
func choose(uploadID string, stored []part, listed []types.CompletedPart) ([]part, error) {
	byNumber := make(map[int32]part, len(stored))
	for _, p := range stored {
		byNumber[p.number] = p
	}
	var chosen []part
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
		sums := checksumsOf(attributes{ChecksumAlgorithm: p.algorithm, Checksum: p.checksum})
		fits := func(given, has *string) bool { return given == nil || has != nil && *given == *has }
		if !found || strings.Trim(*want.ETag, `"`) != p.etag || !fits(want.ChecksumCRC32, sums.crc32) || !fits(want.ChecksumCRC32C, sums.crc32c) ||
			!fits(want.ChecksumSHA1, sums.sha1) || !fits(want.ChecksumSHA256, sums.sha256) || !fits(want.ChecksumCRC64NVME, sums.crc64nvme) {
			return nil, s3err.GetInvalidPartErr(strings.Clone(uploadID), number, *want.ETag)
		}
		if p.size < minPartSize && i < len(listed)-1 {
			return nil, s3err.GetEntityTooSmallErr(p.size, minPartSize)
		}
		chosen = append(chosen, p)
	}
	return chosen, nil
}

// ListParts implements the front's Backend.
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
	u, err := b.db.upload(b.base, *in.Bucket, *in.Key, *in.UploadId)
	var stored []part
	if err == nil {
		stored, err = b.db.parts(b.base, u.id, after, limit+1)
	}
	if err != nil {
		return result, b.fail(r, *in.Bucket, "ListParts", err)
	}
	result.PartNumberMarker, result.MaxParts, result.IsTruncated = after, limit, len(stored) > limit
	for _, p := range stored[:min(len(stored), limit)] {
		sums := checksumsOf(attributes{ChecksumAlgorithm: p.algorithm, Checksum: p.checksum})
		result.Parts = append(result.Parts, s3response.Part{
			PartNumber: int(p.number), LastModified: p.changed, ETag: quoted(p.etag), Size: p.size, ChecksumCRC32: sums.crc32,
			ChecksumCRC32C: sums.crc32c, ChecksumSHA1: sums.sha1, ChecksumSHA256: sums.sha256, ChecksumCRC64NVME: sums.crc64nvme,
		})
		result.NextPartNumberMarker = int(p.number)
	}
	if u.attributes.ChecksumAlgorithm != "" {
		result.ChecksumAlgorithm, result.ChecksumType = types.ChecksumAlgorithm(u.attributes.ChecksumAlgorithm), u.checksumType()
	}
	return result, nil
}
