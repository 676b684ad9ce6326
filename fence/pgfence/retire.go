package pgfence

import (
	"context"
	"crypto/sha256"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/internal/core"
)

// Retired is the result of one step of [Fence.Retire].
type Retired struct {
	Fences  int      // how many were retired
	Unended []string // armed that long ago, but the grant never ended: their leases may still be held
	Next    string   // where the next step begins; "": this was the last step
}

// Retire examines the next fences after a name, in byte order, and deletes the rows of those whose grant ended more
// than unused ago, by its release or because all fences were invalidated. Their stale tokens are still refused,
// forever: the greatest of them is kept as a floor that many names share. A new acquisition of such a resource, or of
// another new one that shares the floor, gets a token above it. So a source of tokens must be able to go above a
// recorded one, as package lock can. Retire skips fences that are in use and does not wait.
//
// Begin with after = "", and continue with Next until that is empty. A step is short: at most 200 fences in one
// transaction. After an error, repeat the step; what was retired stays retired.
func (f *Fence) Retire(ctx context.Context, unused time.Duration, after string) (Retired, error) {
	var r Retired
	var next *string
	err := f.pool.QueryRow(ctx, core.SQLRetire, unused.Microseconds(), after).Scan(&next, &r.Fences, &r.Unended)
	if err != nil {
		return Retired{}, fmt.Errorf("retire fences behind %q: %w", after, Translate(err))
	}
	if next != nil {
		r.Next = *next
	}
	return r, nil
}

const (
	// learnEvery is the minimum interval between queries for the floors; learnTimeout bounds a query.
	learnEvery   = 10 * time.Second
	learnTimeout = time.Second
	buckets      = 4096
)

// floors is a copy of fence.floors, the floors left by retired fences. It may be outdated.
type floors struct {
	timeout time.Duration // learnTimeout

	mu    sync.Mutex
	known [buckets]fence.Token
	asked time.Time
}

// Floor is the floor of the retired fences that share a bucket with the resource: a resource without a fence can be
// armed only to a token above it. It is the copy that was read when [Fence.Arm] last failed because of a low token;
// Floor sends no query.
func (f *Fence) Floor(resource string) fence.Token {
	f.floors.mu.Lock()
	defer f.floors.mu.Unlock()
	return f.floors.known[bucketOf(resource)]
}

// bucketOf is the Go version of fence.bucket_of.
func bucketOf(resource string) int {
	h := sha256.Sum256([]byte(resource))
	return int(h[0])<<4 | int(h[1])>>4
}

// learnFloors reads all floors, at most once per learnEvery. If that fails, a later arming retries.
func (f *Fence) learnFloors(ctx context.Context) {
	f.floors.mu.Lock()
	due := time.Since(f.floors.asked) >= learnEvery
	if due {
		f.floors.asked = time.Now()
	}
	f.floors.mu.Unlock()
	if !due {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, f.floors.timeout)
	defer cancel()
	var bucket int
	var floor int64
	rows, _ := f.pool.Query(ctx, core.SQLFloors) // rows returns the error again
	_, _ = pgx.ForEachRow(rows, []any{&bucket, &floor}, func() error {
		f.floors.mu.Lock()
		defer f.floors.mu.Unlock()
		if bucket >= 0 && bucket < buckets {
			f.floors.known[bucket] = fence.Token(floor)
		}
		return nil
	})
}
