package objects

import (
	"crypto/sha1" //nolint:gosec // one of S3's checksums
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"hash"
	"hash/crc32"
	"hash/crc64"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/fencegate/fencegate/gateway/blob"
)

// Stored is a version as it is stored: a row of objects.versions.
type Stored struct {
	ID         [16]byte
	Blobs      [][16]byte
	BlobSizes  []int64
	Size       int64
	ETag       string
	Attributes Attributes
	CreatedAt  time.Time
	Kept       bool // its bucket keeps versions, so clients see its id
}

// ShownID returns the id that clients see if the bucket keeps versions, else nil.
func (v Stored) ShownID() *string {
	if !v.Kept {
		return nil
	}
	id := blob.ID(v.ID).String()
	return &id
}

// Attributes are what a read returns besides the bytes. Empty ones are omitted.
type Attributes struct {
	ContentType        string            `json:"content_type,omitempty"`
	ContentEncoding    string            `json:"content_encoding,omitempty"`
	ContentDisposition string            `json:"content_disposition,omitempty"`
	ContentLanguage    string            `json:"content_language,omitempty"`
	CacheControl       string            `json:"cache_control,omitempty"`
	Expires            string            `json:"expires,omitempty"`
	Metadata           map[string]string `json:"metadata,omitempty"`
	ChecksumAlgorithm  string            `json:"checksum_algorithm,omitempty"`
	Checksum           string            `json:"checksum,omitempty"`       // base64
	ChecksumType       string            `json:"checksum_type,omitempty"`  // of an upload in progress; a checksum shows it
	PartChecksums      []string          `json:"part_checksums,omitempty"` // base64; read only on request
	Tags               map[string]string `json:"tags,omitempty"`
}

func (v *Stored) scan(row pgx.Row) error {
	var text []byte
	if err := row.Scan(&v.ID, &v.Blobs, &v.BlobSizes, &v.Size, &v.ETag, &text, &v.CreatedAt, &v.Kept); err != nil {
		return err
	}
	if err := json.Unmarshal(text, &v.Attributes); err != nil {
		return fmt.Errorf("read the attributes of version %x: %w", v.ID, err)
	}
	return nil
}

const (
	versionColumns = "id, blobs, blob_sizes, size, etag, attributes - 'part_checksums', created_at, objects.keeps(bucket)"

	// of a version v that may be missing in a bucket b
	foundColumns = `coalesce(v.id, '00000000-0000-0000-0000-000000000000'), coalesce(v.blobs, '{}'), coalesce(v.blob_sizes, '{}'), coalesce(v.size, 0),
	coalesce(v.etag, ''), coalesce(v.attributes - 'part_checksums', '{}'), coalesce(v.created_at, b.created_at), b.keep_count IS DISTINCT FROM 0`
)

// NullVersion names the only version of a key in a bucket that keeps none.
const NullVersion = "null"

// CheckVersionID returns [ErrVersionID] for an invalid version id. "" and [NullVersion] stand for the current version.
func CheckVersionID(id string) error {
	_, err := parseVersion(id)
	return err
}

// parseVersion parses a version's id; an invalid one stands for the current version.
func parseVersion(versionID string) (pgtype.UUID, error) {
	if versionID == "" || versionID == NullVersion {
		return pgtype.UUID{}, nil
	}
	id, err := blob.ParseID(versionID)
	if err != nil {
		return pgtype.UUID{}, ErrVersionID
	}
	return UUID(id), nil
}

// rowTail scans a row's columns after the leading ones.
type rowTail struct {
	row interface{ Scan(dest ...any) error }
	at  []any
}

func (b rowTail) Scan(dest ...any) error { return b.row.Scan(append(b.at, dest...)...) }

// Names that PostgreSQL can store.

// MaxKey is S3's limit for a key, in bytes of UTF-8.
const MaxKey = 1024

// CheckKey refuses a key with a [*KeyTooLongError] or a [*TextError].
func CheckKey(key string) error {
	switch {
	case len(key) > MaxKey:
		return &KeyTooLongError{Size: len(key)}
	case !ValidText(key):
		return &TextError{What: "key"}
	}
	return nil
}

// ValidText reports whether PostgreSQL can store the text.
func ValidText(s string) bool { return utf8.ValidString(s) && !strings.Contains(s, "\x00") }

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
