package objects

import (
	"encoding/json"
	"fmt"
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

// ShownID is the id for clients of a bucket that keeps versions, else nil.
func (v Stored) ShownID() *string {
	if !v.Kept {
		return nil
	}
	id := blob.ID(v.ID).String()
	return &id
}

// Attributes are what a read gives back beside the bytes. Empty ones are left out.
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
	ChecksumType       string            `json:"checksum_type,omitempty"`  // of an upload under way; a checksum shows it by itself
	PartChecksums      []string          `json:"part_checksums,omitempty"` // base64; read only where they are asked for
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

const versionColumns = "id, blobs, blob_sizes, size, etag, attributes - 'part_checksums', created_at, objects.keeps(bucket)"

// NullVersion names the only version of a key in a bucket that keeps none.
const NullVersion = "null"

// CheckVersionID refuses what can't be a version's id with [ErrVersionID]. "" and
// [NullVersion] stand for the current version.
func CheckVersionID(id string) error {
	_, err := parseVersion(id)
	return err
}

// parseVersion reads a version's id; one that is not valid stands for the current version.
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

// Names that PostgreSQL holds.

// MaxKey is what S3 allows, in bytes of UTF-8.
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
