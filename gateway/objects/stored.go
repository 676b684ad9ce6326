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

const versionColumns = "id, blobs, blob_sizes, size, etag, attributes - 'part_checksums', created_at, objects.keeps(bucket)"

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
