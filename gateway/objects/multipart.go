package objects

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/blob"
)

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

// noted is the kind under which an attempt is recorded.
func (p NewPart) noted() string { return fmt.Sprintf("part %d of %s", p.Number, p.Upload) }

// PartBefore returns the part that an earlier attempt of the request stored, even if another one has its number by now.
// why is the reason for which the request cannot be carried out now. If there was no earlier attempt, PartBefore returns
// why. The part's blob, its size and its time are not set.
func (w *Writer) PartBefore(ctx context.Context, p NewPart, why error) (Part, error) {
	if unsettled(why) {
		return Part{}, why
	}
	made, done, err := w.earlier(ctx, p.Change, p.noted())
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
	id, err := w.announce(ctx, p.Change, p.noted())
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
