package objects

import (
	"context"

	"github.com/fencegate/fencegate/gateway/blob"
)

const (
	sqlAbandonUpload = "SELECT objects.abandon_upload($1)"
	sqlIsUnnamed     = "SELECT NOT EXISTS (SELECT FROM objects.blobs WHERE id = $1 AND state <> 'condemned')"
)

// discard discards an upload whose commit was not and will not be requested, so it deletes the bytes even if the row is
// gone.
func (w *Writer) discard(ctx context.Context, id blob.ID) {
	if gone, _ := w.giveUp(ctx, id); !gone {
		w.forget(ctx, id)
	}
}

// giveUp discards a pending upload: first its row, so that no commit can publish it, then its bytes. gone: nothing will
// ever point at it. answered but not gone is final: it was committed, or discarded before. The sweep handles failures.
func (w *Writer) giveUp(ctx context.Context, id blob.ID) (gone, answered bool) {
	err := w.db.Once(ctx, func(ctx context.Context, q Querier) error {
		return q.QueryRow(ctx, sqlAbandonUpload, UUID(id)).Scan(&gone)
	})
	if err == nil && gone {
		w.erase(ctx, id)
	}
	if err != nil {
		w.log.Warn("s3: failed to discard an upload; the sweep discards it", "blob", id, "error", err)
	}
	return gone, err == nil
}

// forget deletes the bytes of a blob to which nothing can point: its row is condemned, or missing. It checks that in
// any case, because a copy of this process may have used the same id. The sweep handles failures.
func (w *Writer) forget(ctx context.Context, id blob.ID) {
	var unnamed bool
	err := w.db.Once(ctx, func(ctx context.Context, q Querier) error {
		return q.QueryRow(ctx, sqlIsUnnamed, UUID(id)).Scan(&unnamed)
	})
	if err != nil {
		w.log.Warn("s3: failed to delete the bytes of a discarded upload; the sweep deletes them", "blob", id, "error", err)
	}
	if unnamed {
		w.erase(ctx, id)
	}
}

// erase deletes the bytes of a condemned blob. The sweep handles failures.
func (w *Writer) erase(ctx context.Context, id blob.ID) {
	if err := w.store.Delete(ctx, id); err != nil {
		w.log.Warn("s3: failed to delete a blob; the sweep deletes it", "blob", id, "error", err)
	}
}
