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

	minReserve    = 8                // blobs of the first batch; each is twice as large as the one before
	reserveAge    = 10 * time.Minute // of what is kept ready, far below the sweep's age
	reservePause  = time.Second      // after a batch that failed
	returnTimeout = 2 * time.Second  // of giving back what is left
)

// reserve keeps blobs ready for small uploads: announced, and with their places
// made, many at the cost of one. It grows with the uploads and is given back when
// there are none.
//
// Nothing relies on it. Each blob is handed out once. A blob that is lost on the
// way, with this process or with PostgreSQL's memory, is a row in objects.blobs
// that the sweep finds, or an upload whose commit is refused: then the reserve is
// given up, and the upload announces a blob of its own. The same where a sweep was
// faster, however long this process slept; or where another process uses the same
// ids, because this one is a copy of it or was set back to an earlier state.
type reserve struct {
	db     Database
	places blob.Reserver
	owned  func(context.Context) error
	log    *slog.Logger
	max    int // blobs of a batch; 0: none are kept, as where the store makes no places

	ctx  context.Context //nolint:containedctx // of the batches under way
	stop context.CancelFunc
	work sync.WaitGroup

	mu      sync.Mutex
	free    []reserved // the oldest first
	size    int        // of the last batch
	filling bool
	closed  bool
	resume  time.Time // no batch before
	expiry  *time.Timer
}

type reserved struct {
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

// take hands out a blob, if one is ready, and sees that there will be others.
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
	made := time.Now() // before PostgreSQL's clock says when
	err := r.announce(ids)
	r.mu.Lock()
	r.filling = false
	keep := err == nil && !r.closed
	if keep {
		r.size = n
		for _, id := range ids {
			r.free = append(r.free, reserved{id, made})
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

// announce commits the rows before any of the files is there, as for every upload.
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

// expire gives back what has become old, and looks again as long as there is more.
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

// drop gives up what is kept ready: it has turned out to be of no use.
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

// close gives everything back and waits for it, not long. Uploads that come later
// announce blobs of their own.
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

// giveBack removes rows and places of blobs that nobody was given. The rows go
// first: they alone know of which blobs that is true. What fails is the sweep's.
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
