package objects

import (
	"crypto/sha1" //nolint:gosec // one of S3's checksums
	"crypto/sha256"
	"hash"
	"hash/crc32"
	"hash/crc64"
	"strings"
)

// ChecksumHash returns the hash of one of S3's checksums; nil for any other name.
func ChecksumHash(algorithm string) hash.Hash {
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

// nvme is the table of the CRC in the NVM Express specification, with its polynomial 0xad93d23594c93659 reflected.
var nvme = crc64.MakeTable(0x9a6c9329ac4bc9b5)

// IsComposite reports whether a checksum is one of parts, "sum-parts"; base64 has no '-'.
func IsComposite(checksum string) bool { return strings.Contains(checksum, "-") }
