package objects

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/fencegate/fencegate/gateway/blob"
)

const (
	sqlReserveBlobs = "SELECT objects.reserve_blobs($1)"
	sqlReturnBlobs  = "SELECT array(SELECT objects.return_blobs($1))"

	minReserve    = 8                // blobs of the first batch; each batch is twice as large as the last
	reserveAge    = 10 * time.Minute // of reserved blobs, far below the sweep's age
	reservePause  = time.Second      // after a failed batch
	returnTimeout = 2 * time.Second  // of returning the remaining blobs
)

// reserve keeps blobs ready for small uploads: announced, and with their places made, many at the cost of one. It grows
// with the uploads and returns its blobs when there are none.
//
// Correctness does not depend on it. Each blob is handed out once. A blob that is lost with this process, or with
// PostgreSQL's memory, is a row in objects.blobs that the sweep finds, or an upload whose commit is refused. In that
// case the reserve is dropped, and the upload announces a blob of its own. The same happens if a sweep was faster
// because this process slept, and if another process uses the same ids because this one is a copy of it or was reset to
// an earlier state.
type reserve struct {
	db     Database
	places blob.Reserver
	owned  func(context.Context) error
	log    *slog.Logger
	max    int // blobs per batch; 0: none, for example if the store makes no places

	ctx  context.Context //nolint:containedctx // of the batches under way
	stop context.CancelFunc
	work sync.WaitGroup

	mu      sync.Mutex
	free    []reservedBlob // the oldest first
	size    int            // of the last batch
	filling bool
	closed  bool
	resume  time.Time // no batch before that time
	expiry  *time.Timer
}

type reservedBlob struct {
	id   blob.ID
	made time.Time
}

func newReserve(ctx context.Context, db Database, store blob.Store, owned func(context.Context) error, log *slog.Logger, size int) *reserve {
	r := &reserve{db: db, owned: owned, log: log}
	if places, ok := store.(blob.Reserver); ok {
		r.places, r.max = places, size
	}
	r.ctx, r.stop = context.WithCancel(ctx)
	return r
}

// take hands out a blob, if one is ready, and starts the next batch when few are left.
func (r *reserve) take() (id blob.ID, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if len(r.free) > 0 && now.Sub(r.free[0].made) < reserveAge {
		id, ok = r.free[0].id, true
		r.free = r.free[1:]
	}
	if len(r.free) <= r.size/2 && !r.filling && !r.closed && r.max > 0 && !now.Before(r.resume) {
		r.filling = true
		n := min(max(2*r.size, minReserve), r.max)
		r.work.Go(func() { r.fill(n) })
	}
	return id, ok
}

// fill adds a batch.
func (r *reserve) fill(n int) {
	ids := blob.NewIDs(n)
	made := time.Now() // before PostgreSQL's own timestamp
	err := r.announce(ids)
	r.mu.Lock()
	r.filling = false
	keep := err == nil && !r.closed
	if keep {
		r.size = n
		for _, id := range ids {
			r.free = append(r.free, reservedBlob{id, made})
		}
		if r.expiry == nil {
			r.expiry = time.AfterFunc(reserveAge, r.expire)
		}
	} else {
		r.size, r.resume = 0, time.Now().Add(reservePause)
	}
	closed := r.closed
	r.mu.Unlock()
	if err != nil && !closed {
		r.log.Warn("s3: failed to reserve blobs; each upload announces its own", "error", err)
	}
	if !keep {
		r.giveBack(ids)
	}
}

// announce commits the rows before any of the files exists, as for every upload.
func (r *reserve) announce(ids []blob.ID) error {
	if err := r.owned(r.ctx); err != nil {
		return err
	}
	if err := r.db.Settle(r.ctx, Exec(sqlReserveBlobs, uuids(ids))); err != nil {
		return err
	}
	if err := r.places.Reserve(r.ctx, ids); err != nil {
		return fmt.Errorf("%w: %w", ErrStoreFailed, err)
	}
	return nil
}

// expire returns blobs that have become too old, and reschedules itself while others remain.
func (r *reserve) expire() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	var old []blob.ID
	for len(r.free) > 0 && time.Since(r.free[0].made) >= reserveAge {
		old = append(old, r.free[0].id)
		r.free = r.free[1:]
	}
	r.expiry = nil
	if len(r.free) > 0 {
		r.expiry = time.AfterFunc(reserveAge-time.Since(r.free[0].made), r.expire)
	}
	if len(old) > 0 {
		r.size = 0
		r.work.Go(func() { r.giveBack(old) })
	}
}

// drop discards the reserve, which has turned out to be invalid.
func (r *reserve) drop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if all := r.takeAll(); len(all) > 0 && !r.closed {
		r.log.Warn("s3: discarding reserved blobs: they are no longer pending in PostgreSQL", "dropped", len(all))
		r.work.Go(func() { r.giveBack(all) })
	}
}

func (r *reserve) takeAll() []blob.ID {
	var all []blob.ID
	for _, one := range r.free {
		all = append(all, one.id)
	}
	r.free, r.size = nil, 0
	return all
}

// close returns all blobs and waits for that, at most returnTimeout. Later uploads announce blobs of their own.
func (r *reserve) close() {
	r.mu.Lock()
	r.closed = true
	if r.expiry != nil {
		r.expiry.Stop()
	}
	all := r.takeAll()
	r.mu.Unlock()
	r.stop()
	r.giveBack(all)
	r.work.Wait()
}

// giveBack removes rows and places of blobs that were not handed out. It removes the rows first: only they show which
// blobs are unused. The sweep handles failures.
func (r *reserve) giveBack(ids []blob.ID) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ctx), returnTimeout)
	defer cancel()
	if len(ids) == 0 {
		return
	}
	var returned [][16]byte
	err := r.db.Once(ctx, func(ctx context.Context, q Querier) error {
		return q.QueryRow(ctx, sqlReturnBlobs, uuids(ids)).Scan(&returned)
	})
	for _, id := range returned {
		err = errors.Join(err, r.places.Delete(ctx, id))
	}
	if err != nil {
		r.log.Info("s3: failed to give back reserved blobs; the sweep deletes them", "blobs", len(ids), "error", err)
	}
}

func uuids(ids []blob.ID) []pgtype.UUID {
	all := make([]pgtype.UUID, len(ids))
	for i, id := range ids {
		all[i] = UUID(id)
	}
	return all
}

// warmUp makes the first batch.
func (r *reserve) warmUp() {
	if r.max > 0 {
		r.mu.Lock()
		r.filling = true
		r.mu.Unlock()
		r.fill(min(minReserve, r.max))
	}
}

func (r *reserve) ready() (ids []blob.ID, settled bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range r.free {
		ids = append(ids, one.id)
	}
	return ids, !r.filling
}
