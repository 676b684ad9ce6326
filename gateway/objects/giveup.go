package objects

import (
	"context"

	"github.com/fencegate/fencegate/gateway/blob"
)

const (
	sqlAbandonUpload = "SELECT objects.abandon_upload($1)"
	sqlIsUnnamed     = "SELECT NOT EXISTS (SELECT FROM objects.blobs WHERE id = $1 AND state <> 'condemned')"
)

// discard takes back an upload that no commit was or will be asked for, so that
// its bytes can go also where its row has.
func (w *Writer) discard(ctx context.Context, id blob.ID) {
	if gone, _ := w.giveUp(ctx, id); !gone {
		w.forget(ctx, id)
	}
}

// giveUp takes back a pending upload: first its row, so that no commit can make
// it live, then its bytes. Gone: nothing will ever point at it. Where it is not gone
// and answered, that lasts: it had been committed, or was given up before. What
// fails here is left to the sweep.
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

// forget deletes the bytes of a blob that nothing can point at: its row is
// condemned, or not there. That is asked even where it should be so, for a copy of
// this process may have used the same id. What fails is left to the sweep.
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

// erase deletes the bytes of a condemned blob. What fails is left to the sweep.
func (w *Writer) erase(ctx context.Context, id blob.ID) {
	if err := w.store.Delete(ctx, id); err != nil {
		w.log.Warn("s3: failed to delete a blob; the sweep deletes it", "blob", id, "error", err)
	}
}
