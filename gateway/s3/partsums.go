package s3

import (
	"crypto/md5"  //nolint:gosec // S3 defines the ETag of a multipart object by the MD5 of its parts
	"crypto/sha1" //nolint:gosec // one of S3's checksums
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"hash"
	"hash/crc32"
	"hash/crc64"
	"net/http"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/versity/versitygw/s3api/utils"
	"github.com/versity/versitygw/s3err"

	"github.com/fencegate/fencegate/gateway/s3/s3error"
)

// checksumHash is the hash of one of S3's checksums; nil for none of them.
func checksumHash(algorithm string) hash.Hash {
	switch algorithm {
	case "CRC32":
		return crc32.NewIEEE()
	case "CRC32C":
		return crc32.New(crc32.MakeTable(crc32.Castagnoli))
	case "CRC64NVME":
		return crc64.New(nvme)
	case "SHA1":
		return sha1.New() //nolint:gosec // see the import
	case "SHA256":
		return sha256.New()
	}
	return nil
}

// nvme is the table of the CRC that the NVM Express specification gives, with its
// polynomial 0xad93d23594c93659 reflected.
var nvme = crc64.MakeTable(0x9a6c9329ac4bc9b5)

// compositeHash is the hash of a checksum that can be made of the parts'
// checksums; nil for one that can't.
func compositeHash(algorithm string) hash.Hash {
	if algorithm == "CRC64NVME" {
		return nil
	}
	return checksumHash(algorithm)
}

// isComposite: a checksum of parts reads "sum-parts"; base64 has no '-'.
func isComposite(checksum string) bool { return strings.Contains(checksum, "-") }

// sumUp makes the object's checksum of its parts': of the kind with which the
// upload was begun.
func (a *attributes) sumUp(parts []part) error {
	if a.ChecksumAlgorithm == "" {
		return nil
	}
	a.PartChecksums = make([]string, len(parts))
	for i, p := range parts {
		a.PartChecksums[i] = p.checksum
	}
	if a.ChecksumType == string(types.ChecksumTypeFullObject) {
		return a.combine(parts)
	}
	h := compositeHash(a.ChecksumAlgorithm)
	if h == nil {
		return fmt.Errorf("an upload was begun with the checksum %s, of which none can be made of its parts'", a.ChecksumAlgorithm)
	}
	for _, p := range parts {
		raw, _ := base64.StdEncoding.DecodeString(p.checksum) // made by body.checksum
		h.Write(raw)
	}
	a.Checksum = base64.StdEncoding.EncodeToString(h.Sum(nil)) + "-" + strconv.Itoa(len(parts))
	return nil
}

// combine makes the CRC of the whole bytes of the parts' CRCs and lengths.
func (a *attributes) combine(parts []part) (err error) {
	a.Checksum = parts[0].checksum
	for _, p := range parts[1:] {
		if a.Checksum, err = utils.AddCRCChecksum(types.ChecksumAlgorithm(a.ChecksumAlgorithm), a.Checksum, p.checksum, p.size); err != nil {
			return fmt.Errorf("combine the parts' checksums: %w", err)
		}
	}
	return nil
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
		return s3error.Error{Code: "InvalidRequest", Status: http.StatusBadRequest, Message: text + " Nothing was changed."}
	}
	if begun := (upload{attributes: a}).checksumType(); in.ChecksumType != "" && in.ChecksumType != begun {
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
