package objects

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/blob"
)

// A staged upload is stored and hashed like any other, and then recorded instead of committed: it is invisible until a
// transaction in PostgreSQL publishes it under the same grant, together with rows.

const (
	sqlStageUpload = "SELECT objects.stage_upload($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)"
	hasItsBlobs    = `cardinality(s.blobs) = (SELECT count(*) FROM objects.blobs b WHERE b.id = ANY (s.blobs) AND b.state = 'pending')` // else it was given up
	sqlStage       = `SELECT id, etag, attributes, created_at FROM objects.stages s WHERE id = $1 AND ` + hasItsBlobs + `
		UNION ALL SELECT id, etag, attributes - 'part_checksums', created_at FROM objects.versions WHERE id = $1`
	sqlStageMultipart = "SELECT id FROM objects.stage_multipart($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)"
)

// staging describes the stage to record.
type staging struct {
	Change

	blobs      []pgtype.UUID
	sizes      []int64
	etag       string
	attributes Attributes
}

// stage records an upload whose bytes are stored; the version's id is the stage's. A repeated attempt gets the first
// attempt's stage. Without an invocation id it makes another stage, which no client knows and the sweep deletes.
func (w *Writer) stage(ctx context.Context, id, bytes blob.ID, s staging) (Stored, error) {
	v, err := w.recordStage(ctx, sqlStageUpload, id, s, given(s.Invocation))
	switch {
	case errors.Is(err, ErrGivenUp), err == nil && v.ID != id: // or an earlier attempt's bytes count for this request
		w.forget(ctx, bytes)
	case err == nil, errors.Is(err, fence.ErrUnknown) && s.Invocation != "": // it may be recorded; a repeated request finds it
	default:
		w.giveUp(ctx, bytes) // if it was recorded after all, it can no longer be published
	}
	return v, err
}

// recordStage returns the version as it will be when published.
func (w *Writer) recordStage(ctx context.Context, sql string, id blob.ID, s staging, more ...any) (Stored, error) {
	encoded, err := json.Marshal(s.attributes)
	if err != nil {
		return Stored{}, fmt.Errorf("encode attributes: %w", err)
	}
	v := Stored{ID: id, ETag: s.etag, Attributes: s.attributes, CreatedAt: time.Now()}
	args := append([]any{
		UUID(id), s.Bucket, s.Key, s.blobs, s.sizes, s.etag, string(encoded),
		s.Proof.Resource, int64(s.Proof.Token), s.Proof.SealHash, s.IfMatch, s.IfNoneMatch,
	}, more...)
	err = w.db.Settle(ctx, func(ctx context.Context, q Querier) error { return q.QueryRow(ctx, sql, args...).Scan(&v.ID) })
	if err != nil {
		return Stored{}, err
	}
	return v, nil
}

// stageOf returns the stage with this id, also if it has been published.
func (w *Writer) stageOf(ctx context.Context, id [16]byte) (v Stored, err error) {
	err = w.db.Once(ctx, func(ctx context.Context, q Querier) error {
		var text []byte
		if err := q.QueryRow(ctx, sqlStage, UUID(id)).Scan(&v.ID, &v.ETag, &text, &v.CreatedAt); err != nil {
			return err
		}
		return json.Unmarshal(text, &v.Attributes)
	})
	return v, err
}
