package s3

import (
	"crypto/md5" //nolint:gosec // S3 defines the ETag of a multipart object by the MD5 of its parts
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"hash"
	"net/http"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/versity/versitygw/s3api/utils"
	"github.com/versity/versitygw/s3err"

	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/s3/s3error"
)

// compositeHash returns the hash for a checksum of the parts' checksums; nil if the algorithm has none.
func compositeHash(algorithm string) hash.Hash {
	if algorithm == "CRC64NVME" {
		return nil
	}
	return objects.ChecksumHash(algorithm)
}

// sumUp computes the object's checksum from its parts', with the upload's algorithm.
func sumUp(a *objects.Attributes, parts []objects.Part) error {
	if a.ChecksumAlgorithm == "" {
		return nil
	}
	a.PartChecksums = make([]string, len(parts))
	for i, p := range parts {
		a.PartChecksums[i] = p.Checksum
	}
	if a.ChecksumType == string(types.ChecksumTypeFullObject) {
		return combine(a, parts)
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

// combine computes the CRC of all bytes from the parts' CRCs and lengths.
func combine(a *objects.Attributes, parts []objects.Part) (err error) {
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
