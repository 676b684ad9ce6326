package s3

import (
	"context"
	"crypto/md5"  //nolint:gosec // S3 defines the ETag of a multipart object by the MD5 of its parts
	"crypto/sha1" //nolint:gosec // one of S3's checksums
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"net/http"
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
	sqlUploads = `SELECT key, id, created_at FROM objects.uploads
	WHERE bucket = $1 AND (key, id) > ($2, $3) AND starts_with(key, $4) ORDER BY key, id LIMIT $5`

	maxParts = 10_000
)

// upload is a multipart upload under way.
type upload struct {
	id         blob.ID
	attributes attributes
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

// compositeHash is the hash of a checksum that can be made of the parts'
// checksums; nil for one that can't.
func compositeHash(algorithm string) hash.Hash {
	switch algorithm {
	case "CRC32":
		return crc32.NewIEEE()
	case "CRC32C":
		return crc32.New(crc32.MakeTable(crc32.Castagnoli))
	case "SHA1":
		return sha1.New() //nolint:gosec // see the import
	case "SHA256":
		return sha256.New()
	}
	return nil
}

func compositeChecksum(algorithm string, parts []part) string {
	h := compositeHash(algorithm)
	if h == nil {
		return ""
	}
	for _, p := range parts {
		raw, _ := base64.StdEncoding.DecodeString(p.checksum) // made by body.checksum
		h.Write(raw)
	}
	return base64.StdEncoding.EncodeToString(h.Sum(nil)) + "-" + strconv.Itoa(len(parts))
}

// compositeETag is the ETag of the object that the listed parts make.
func compositeETag(listed []types.CompletedPart) string {
	digest := md5.New() //nolint:gosec // see the import
	for _, p := range listed {
		if p.ETag == nil {
			continue
		}
		raw, _ := hex.DecodeString(strings.Trim(*p.ETag, `"`)) // what is none fits no object
		digest.Write(raw)
	}
	return hex.EncodeToString(digest.Sum(nil)) + "-" + strconv.Itoa(len(listed))
}

// compareChecksum compares the object's checksum that a completion announces, if
// any, with that of its parts. The number of parts may be left out.
func compareChecksum(in *s3.CompleteMultipartUploadInput, a attributes) error {
	mismatch := func(text string) error {
		return apiError{code: "InvalidRequest", status: http.StatusBadRequest, message: text + " Nothing was changed."}
	}
	if in.ChecksumType != "" && in.ChecksumType != types.ChecksumTypeComposite {
		return mismatch("The upload's checksum type is COMPOSITE, and the completion says " + string(in.ChecksumType) + ".")
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
		result.ChecksumAlgorithm, result.ChecksumType = types.ChecksumAlgorithm(u.attributes.ChecksumAlgorithm), types.ChecksumTypeComposite
	}
	return result, nil
}

// ListMultipartUploads implements the front's Backend. Delimiters are not there.
func (b *backend) ListMultipartUploads(ctx context.Context, in *s3.ListMultipartUploadsInput) (s3response.ListMultipartUploadsResult, error) {
	r := b.requestOf(ctx)
	text := func(s *string) string {
		if s == nil {
			return ""
		}
		return *s
	}
	result := s3response.ListMultipartUploadsResult{Bucket: *in.Bucket, Prefix: text(in.Prefix), KeyMarker: text(in.KeyMarker), UploadIDMarker: text(in.UploadIdMarker)}
	if text(in.Delimiter) != "" {
		return result, errNotThere
	}
	marker := blob.ID{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff} // all uploads of the key
	if result.UploadIDMarker != "" && result.KeyMarker != "" {
		var err error
		if marker, err = blob.ParseID(result.UploadIDMarker); err != nil {
			return result, apiError{code: "InvalidArgument", status: 400, message: "Invalid uploadId marker"}
		}
	}
	limit := min(int(*in.MaxUploads), maxList)
	result.MaxUploads = limit
	_, err := b.db.rule(b.base, *in.Bucket)
	if err == nil {
		err = b.db.once(b.base, func(ctx context.Context, q querier) error {
			rows, err := q.Query(ctx, sqlUploads, *in.Bucket, result.KeyMarker, uuid(marker), result.Prefix, limit+1)
			if err != nil {
				return err
			}
			var u s3response.Upload
			var id [16]byte
			_, err = pgx.ForEachRow(rows, []any{&u.Key, &id, &u.Initiated}, func() error {
				u.UploadID, u.StorageClass = blob.ID(id).String(), types.StorageClassStandard
				result.Uploads = append(result.Uploads, u)
				return nil
			})
			return err
		})
	}
	if err != nil {
		return result, b.fail(r, *in.Bucket, "ListMultipartUploads", err)
	}
	if result.IsTruncated = len(result.Uploads) > limit && limit > 0; result.IsTruncated {
		last := result.Uploads[limit-1]
		result.NextKeyMarker, result.NextUploadIDMarker = last.Key, last.UploadID
	}
	result.Uploads = result.Uploads[:min(limit, len(result.Uploads))]
	return result, nil
}
