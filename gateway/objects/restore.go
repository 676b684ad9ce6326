package objects

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/fencegate/fencegate/gateway/blob"
)

const sqlRestore = "SELECT " + versionColumns + " FROM objects.restore_version($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)"

const storeWorkers = 8 // concurrent requests to the store

// Restore makes an older version of a key current again, by a new version that lists the same blobs. It first checks
// that every blob exists with its recorded size: after a restored backup of the database or the store, PostgreSQL may
// list missing blobs.
func (w *Writer) Restore(ctx context.Context, p Change, source Stored) (Stored, error) {
	if err := w.stored(ctx, source); err != nil {
		if _, gone := w.reader.Find(ctx, p.Bucket, p.Key, blob.ID(source.ID).String()); gone != nil {
			err = gone // released and swept since it was found
		}
		return Stored{}, err
	}
	var v Stored
	args := []any{
		UUID(blob.NewID()), p.Bucket, p.Key, UUID(source.ID), p.Proof.Resource, int64(p.Proof.Token), p.Proof.SealHash,
		given(p.Invocation), p.IfMatch, p.IfNoneMatch,
	}
	err := w.db.Settle(ctx, func(ctx context.Context, q Querier) error { return v.scan(q.QueryRow(ctx, sqlRestore, args...)) })
	return v, err
}

// stored checks that the store has a version's blobs, with their sizes; several at a time, because there may be many.
func (w *Writer) stored(ctx context.Context, v Stored) error {
	errs := make([]error, len(v.Blobs))
	free := make(chan struct{}, storeWorkers)
	var wg sync.WaitGroup
	for i, id := range v.Blobs {
		free <- struct{}{}
		wg.Go(func() {
			defer func() { <-free }()
			size, err := w.store.Size(ctx, id)
			switch {
			case errors.Is(err, blob.ErrNotFound):
				errs[i] = fmt.Errorf("the blob store lacks a blob of version %x: %w", v.ID, err)
			case err != nil:
				errs[i] = fmt.Errorf("%w: %w", ErrStoreFailed, err)
			case size != v.BlobSizes[i]:
				errs[i] = fmt.Errorf("blob %s of version %x: %w: the store has %d bytes of %d", blob.ID(id), v.ID, blob.ErrSize, size, v.BlobSizes[i])
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
