package objects

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/gateway/blob"
)

const (
	sqlUpload = "SELECT attributes FROM objects.uploads WHERE id = $1 AND bucket = $2 AND key = $3"
	sqlParts  = `SELECT number, blob, size, etag, checksum_algorithm, checksum, changed_at FROM objects.parts
	WHERE upload = $1 AND number > $2 ORDER BY number LIMIT $3`

	sqlBeginMultipart = "SELECT objects.begin_multipart($1, $2, $3, $4, $5, $6, $7, $8)"
	sqlAbortMultipart = "SELECT objects.abort_multipart($1, $2, $3, $4, $5, $6, $7)"
	sqlCompleted      = "SELECT " + versionColumns + " FROM objects.completed_multipart($1, $2, $3, $4, $5, $6, $7)"
	sqlStaged         = `SELECT etag, attributes, resource, token FROM objects.stages s WHERE id = $1 AND bucket = $2 AND key = $3 AND ` + hasItsBlobs
)

// MaxParts is the greatest number of parts of an upload.
const MaxParts = 10_000

// Upload is a multipart upload in progress.
type Upload struct {
	ID         blob.ID
	Attributes Attributes
}

// Part is a stored part of an upload.
type Part struct {
	Number              int32
	Blob                [16]byte
	Size                int64
	ETag                string
	Algorithm, Checksum string
	Changed             time.Time
}

// BeginUpload begins a multipart upload. It needs the grant, so that a stale writer fails early; the completion of the
// upload decides.
func (c *Catalog) BeginUpload(ctx context.Context, ch Change, a Attributes) (blob.ID, error) {
	encoded, err := json.Marshal(a)
	if err != nil {
		return blob.ID{}, fmt.Errorf("encode attributes: %w", err)
	}
	id := [16]byte(blob.NewID())
	args := []any{UUID(id), ch.Bucket, ch.Key, string(encoded), ch.Proof.Resource, int64(ch.Proof.Token), ch.Proof.SealHash, ch.attempt()}
	err = c.db.underGrant().Settle(ctx, func(ctx context.Context, q Querier) error {
		return q.QueryRow(ctx, sqlBeginMultipart, args...).Scan(&id)
	})
	return id, err
}

// Upload finds an upload by the client's id; else it returns a [*NoUploadError].
func (c *Catalog) Upload(ctx context.Context, bucket, key, id string) (Upload, error) {
	none := &NoUploadError{ID: strings.Clone(id)}
	parsed, err := blob.ParseID(id)
	if err != nil {
		return Upload{}, none
	}
	u := Upload{ID: parsed}
	var text []byte
	err = c.db.Once(ctx, func(ctx context.Context, q Querier) error {
		return q.QueryRow(ctx, sqlUpload, UUID(parsed), bucket, key).Scan(&text)
	})
	if err = noRows(err, none); err != nil {
		return Upload{}, err
	}
	if err := json.Unmarshal(text, &u.Attributes); err != nil {
		return Upload{}, fmt.Errorf("read the attributes of upload %s: %w", parsed, err)
	}
	return u, nil
}

// Parts lists the parts with numbers above the given one.
func (c *Catalog) Parts(ctx context.Context, id blob.ID, above, limit int) ([]Part, error) {
	var all []Part
	err := c.db.Once(ctx, func(ctx context.Context, q Querier) error {
		all = nil
		rows, err := q.Query(ctx, sqlParts, UUID(id), above, limit)
		if err != nil {
			return err
		}
		var p Part
		_, err = pgx.ForEachRow(rows, []any{&p.Number, &p.Blob, &p.Size, &p.ETag, &p.Algorithm, &p.Checksum, &p.Changed}, func() error {
			all = append(all, p)
			return nil
		})
		return err
	})
	return all, err
}

// Completed answers the repetition of a completion that was carried out: for the grant that made the version, or else
// for the current one. etag is the ETag of the parts in the request. If nothing matches, the error is otherwise.
func (c *Catalog) Completed(ctx context.Context, ch Change, upload, etag string, otherwise error) (Stored, error) {
	id, err := blob.ParseID(upload)
	if err != nil {
		return Stored{}, otherwise
	}
	var v Stored
	err = c.db.Once(ctx, func(ctx context.Context, q Querier) error {
		return v.scan(q.QueryRow(ctx, sqlCompleted, UUID(id), ch.Bucket, ch.Key, ch.Proof.Resource, int64(ch.Proof.Token), ch.Proof.SealHash, given(ch.Invocation)))
	})
	if errors.Is(err, ErrNoUpload) || err == nil && v.ETag != etag {
		return Stored{}, otherwise
	}
	return v, err
}

// StagedUpload is Completed for a completion that staged its upload, and for the grant that did.
func (c *Catalog) StagedUpload(ctx context.Context, ch Change, upload, etag string, otherwise error) (Stored, error) {
	id, err := blob.ParseID(upload)
	if err != nil {
		return Stored{}, otherwise
	}
	v := Stored{ID: id}
	var text []byte
	var resource string
	var token int64
	err = c.db.Once(ctx, func(ctx context.Context, q Querier) error {
		return q.QueryRow(ctx, sqlStaged, UUID(id), ch.Bucket, ch.Key).Scan(&v.ETag, &text, &resource, &token)
	})
	if err = noRows(err, otherwise); err == nil {
		err = json.Unmarshal(text, &v.Attributes)
	}
	if err != nil {
		return Stored{}, err
	}
	if v.ETag != etag || token != 0 && (resource != ch.Proof.Resource || token != int64(ch.Proof.Token)) {
		return Stored{}, otherwise
	}
	return v, nil
}
