package objects

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/blob"
)

// MaxParts is the greatest number of parts of an upload.
const MaxParts = 10_000

const (
	sqlUpload = "SELECT attributes FROM objects.uploads WHERE id = $1 AND bucket = $2 AND key = $3"
	sqlParts  = `SELECT number, blob, size, etag, checksum_algorithm, checksum, changed_at FROM objects.parts
	WHERE upload = $1 AND number > $2 ORDER BY number LIMIT $3`

	sqlBeginMultipart = "SELECT objects.begin_multipart($1, $2, $3, $4, $5, $6, $7, $8)"
	sqlAbortMultipart = "SELECT objects.abort_multipart($1, $2, $3, $4, $5, $6, $7)"
	sqlCompleted      = "SELECT " + versionColumns + " FROM objects.completed_multipart($1, $2, $3, $4, $5, $6, $7)"
	sqlStaged         = `SELECT etag, attributes, resource, token FROM objects.stages s WHERE id = $1 AND bucket = $2 AND key = $3 AND ` + hasItsBlobs
)

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

const (
	sqlPutPart           = "SELECT objects.put_part($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)"
	sqlCompleteMultipart = "SELECT " + versionColumns + " FROM objects.complete_multipart($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)"
)

// NewPart is a part to store.
type NewPart struct {
	Change

	Upload blob.ID
	Number int32
	Size   int64 // announced, in bytes
	Body   Body
}

// kind is the kind under which an attempt is recorded.
func (p NewPart) kind() string { return fmt.Sprintf("part %d of %s", p.Number, p.Upload) }

// PartBefore returns the part that an earlier attempt of the request stored, even if another one has its number by now.
// why is the reason for which the request cannot be carried out now. If there was no earlier attempt, PartBefore
// returns why. The part's blob, its size and its time are not set.
func (w *Writer) PartBefore(ctx context.Context, p NewPart, why error) (Part, error) {
	if isFinal(why) {
		return Part{}, why
	}
	made, done, err := w.earlier(ctx, p.Change, p.kind())
	switch {
	case err != nil:
		return Part{}, err
	case !done:
		return Part{}, why
	}
	return Part{Number: p.Number, ETag: made.ETag, Algorithm: made.Algorithm, Checksum: made.Checksum}, nil
}

// PutPart stores a part's bytes as a pending blob and adds it to its upload.
func (w *Writer) PutPart(ctx context.Context, p NewPart) (Part, error) {
	id, err := w.announce(ctx, p.Change, p.kind())
	if err != nil {
		return Part{}, err
	}
	if err := w.stream(ctx, id, p.Body, p.Size); err != nil {
		w.discard(ctx, id)
		return Part{}, err
	}
	stored := Part{Number: p.Number, Blob: id, Size: p.Size, ETag: p.Body.ETag()}
	stored.Algorithm, stored.Checksum = p.Body.Checksum()
	args := []any{
		UUID(p.Upload), p.Bucket, p.Key, p.Number, UUID(id), p.Size, stored.ETag, stored.Algorithm, stored.Checksum,
		p.Proof.Resource, int64(p.Proof.Token), p.Proof.SealHash, p.attempt(),
	}
	err = w.db.Settle(ctx, func(ctx context.Context, q Querier) error {
		return q.QueryRow(ctx, sqlPutPart, args...).Scan(&stored.Blob)
	})
	switch {
	case err == nil && stored.Blob == id:
		return stored, nil
	case err == nil:
		w.forget(ctx, id) // an earlier attempt's bytes count for this request
		return stored, nil
	case errors.Is(err, ErrGivenUp):
		w.forget(ctx, id)
		return Part{}, ErrGivenUp
	}
	if !errors.Is(err, fence.ErrUnknown) { // if unknown, the part may be stored; a repeated request finds it
		w.giveUp(ctx, id)
	}
	return Part{}, err
}

// Completion completes an upload: its parts become the key's version.
type Completion struct {
	Change

	Upload     blob.ID
	Parts      []Part
	ETag       string
	Attributes Attributes
	Stage      bool // only record it: the client's transaction publishes it
}

// Complete commits a version that lists the parts' blobs.
func (w *Writer) Complete(ctx context.Context, c Completion) (Stored, error) {
	done := staging{Change: c.Change, etag: c.ETag, attributes: c.Attributes}
	for _, p := range c.Parts {
		done.blobs, done.sizes = append(done.blobs, UUID(p.Blob)), append(done.sizes, p.Size)
	}
	if c.Stage {
		return w.recordStage(ctx, sqlStageMultipart, c.Upload, done)
	}
	return w.commitParts(ctx, c.Upload, done)
}

// commitParts makes the sum of an upload's parts the key's version.
func (w *Writer) commitParts(ctx context.Context, upload blob.ID, c staging) (Stored, error) {
	encoded, err := json.Marshal(c.attributes)
	if err != nil {
		return Stored{}, fmt.Errorf("encode attributes: %w", err)
	}
	var v Stored
	err = w.decide(ctx, func(ctx context.Context, q Querier) error {
		return v.scan(q.QueryRow(ctx, sqlCompleteMultipart, UUID(upload), c.Bucket, c.Key, c.blobs, c.sizes, c.etag, string(encoded),
			c.Proof.Resource, int64(c.Proof.Token), c.Proof.SealHash, given(c.Invocation), c.IfMatch, c.IfNoneMatch))
	})
	if err != nil {
		return Stored{}, err
	}
	return v, nil
}

// Abort discards an upload, or returns a [*NoUploadError]. Only the current holder may abort; the sweep deletes uploads
// that a stale holder left.
func (w *Writer) Abort(ctx context.Context, ch Change, upload string) error {
	none := &NoUploadError{ID: strings.Clone(upload)}
	id, err := blob.ParseID(upload)
	if err != nil {
		return none
	}
	var gone [][16]byte
	args := []any{UUID(id), ch.Bucket, ch.Key, ch.Proof.Resource, int64(ch.Proof.Token), ch.Proof.SealHash, ch.attempt()}
	err = w.db.Settle(ctx, func(ctx context.Context, q Querier) error {
		return q.QueryRow(ctx, sqlAbortMultipart, args...).Scan(&gone)
	})
	if errors.Is(err, ErrNoUpload) {
		return none // an attempt whose answer was lost has not aborted it either
	}
	if err != nil {
		return err
	}
	for _, id := range gone {
		w.erase(ctx, id)
	}
	return nil
}
