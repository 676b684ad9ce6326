//go:build unix

package s3_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/objects/maintenance"
)

// taken is a store that another database claims during a sweep.
type taken struct {
	folder

	deleted atomic.Int32
}

func (s *taken) Delete(ctx context.Context, id blob.ID) error {
	if s.deleted.Add(1) == 1 {
		if err := s.SetOwner(ctx, "another database"); err != nil {
			return err
		}
	}
	return s.folder.Delete(ctx, id)
}

// A sweep may take hours. The new owner's knowledge of these blobs is newer.
func TestASweepEndsWhenItsStoreIsTaken(t *testing.T) {
	t.Parallel()
	w := setup(t)
	put(t, w.lease("orders/1001", 5), w.bucket(), invoice, "data") // marks the store
	w.exec("INSERT INTO objects.blobs (id, state) SELECT gen_random_uuid(), 'condemned' FROM generate_series(1, 1200)")
	store := &taken{folder: w.store.Store.(folder)}
	_, err := maintenance.New(objects.NewDatabase(poolOf(t, w.pg.GatewayURL), 0), store).Sweep(t.Context(), maintenance.Sweep{})
	if _, foreign := errors.AsType[*maintenance.StoreOwnerError](err); !foreign {
		t.Errorf("got %v", err)
	}
	if n := store.deleted.Load(); n > 500 { // those of the step in progress
		t.Errorf("it deleted %d blobs", n)
	}
}
