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

// Retired says what one step of [Fence.Retire] did.
type Retired struct {
	Fences  int      // how many were retired
	Unended []string // armed longer ago than that, with a grant that nobody has ended: their leases may still be held
	Next    string   // where the next step begins; "": all were looked at
}

// Retire looks at the next fences behind a name, in the order of the names' bytes,
// and deletes the rows of those whose grant ended more than unused ago, by its
// release or because all fences were invalidated. Their stale tokens are still refused, for ever: the
// greatest of them is kept as a floor that many names share. A new acquisition of such
// a resource, and of any other new one that shares the floor, gets a token above it.
// So whatever issues tokens must be able to go above a recorded one, as package lock
// does. It waits for nobody: what is in use is left alone.
//
// Begin with after = "", and go on with Next until that is empty. A step is short,
// at most 200 fences in one transaction. After an error, do it again: what was retired
// stays so.
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
	// learnEvery bounds how often floors are asked for, and learnTimeout how long.
	learnEvery   = 10 * time.Second
	learnTimeout = time.Second
	buckets      = 4096
)

// floors are what retired fences have left, as far as is known: a copy of fence.floors.
type floors struct {
	mu    sync.Mutex
	known [buckets]fence.Token
	asked time.Time
}

// Floor is the token that a resource without a fence can't be armed to, nor to any below: the floor of the retired fences
// that share it. It asks nobody, and says what was known when [Fence.Arm] was last told that its token was too low.
func (f *Fence) Floor(resource string) fence.Token {
	f.floors.mu.Lock()
	defer f.floors.mu.Unlock()
	return f.floors.known[bucketOf(resource)]
}

// bucketOf is fence.bucket_of.
func bucketOf(resource string) int {
	h := sha256.Sum256([]byte(resource))
	return int(h[0])<<4 | int(h[1])>>4
}

// learnFloors asks for all floors, now and then. Without an answer the next arming learns of its own.
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
	ctx, cancel := context.WithTimeout(ctx, learnTimeout)
	defer cancel()
	var bucket int
	var floor int64
	rows, _ := f.pool.Query(ctx, core.SQLFloors) // the error comes again from rows
	_, _ = pgx.ForEachRow(rows, []any{&bucket, &floor}, func() error {
		f.floors.mu.Lock()
		defer f.floors.mu.Unlock()
		if bucket >= 0 && bucket < buckets {
			f.floors.known[bucket] = fence.Token(floor)
		}
		return nil
	})
}
