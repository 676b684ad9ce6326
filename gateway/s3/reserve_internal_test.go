//go:build unix

package s3 //nolint:testpackage // a reserve's age shows only inside

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/gateway/blob"
)

// places notes what is deleted.
type places struct {
	blob.Reserver

	mu   sync.Mutex
	gone []blob.ID
}

func (p *places) Delete(_ context.Context, id blob.ID) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gone = append(p.gone, id)
	return nil
}

func TestAReserveThatGrewOldIsNotHandedOut(t *testing.T) {
	t.Parallel()
	nobody, err := pgxpool.New(t.Context(), "host=/nonexistent")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nobody.Close)
	ids := blob.NewIDs(3)
	p := &places{}
	r := &reserve{
		db: database{pool: nobody, timeout: time.Second}, places: p, log: slog.New(slog.DiscardHandler), max: 8, size: 2, resume: time.Now().Add(time.Hour), // no other batch
		free: []reserved{{ids[0], time.Now().Add(-reserveAge)}, {ids[1], time.Now().Add(-reserveAge)}, {ids[2], time.Now()}},
	}
	r.ctx, r.stop = context.WithCancel(t.Context())
	if id, ok := r.take(); ok {
		t.Errorf("%s was handed out", id)
	}
	r.expire()
	if id, ok := r.take(); !ok || id != ids[2] {
		t.Errorf("got %s, %v, want the young one", id, ok)
	}
	if r.expiry == nil {
		t.Error("nobody looks after the young ones")
	}
	r.expiry.Stop()
	r.work.Wait()
	if len(p.gone) != 2 || p.gone[0] != ids[0] || p.gone[1] != ids[1] {
		t.Errorf("given back: %v", p.gone)
	}
}
