package gateway

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/api"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/admin"
)

// quarantineError reports when the quarantine that blocks leases ends.
type quarantineError struct {
	cause error
	left  time.Duration
}

func (e *quarantineError) Error() string {
	return fmt.Sprintf("%v; the quarantine of the nodes ends in %v", e.cause, e.left.Round(time.Second))
}

func (e *quarantineError) Unwrap() error { return e.cause }

// Left is the time until the quarantine ends.
func (e *quarantineError) Left() time.Duration { return e.left }

// Tell is the text for clients.
func (e *quarantineError) Tell() string {
	return fmt.Sprintf("No quorum of Redis nodes serves the gateway now: quarantine, %d s left.", int64((e.left+time.Second-1)/time.Second))
}

// named wraps errors of acquisitions with the texts for clients.
func (g guarded) named(ctx context.Context, err error) error {
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok && refused.Code == "22023" && strings.HasPrefix(refused.Message, "seal was used") {
		return fmt.Errorf("%w: %w", api.ErrKeyUsed, err)
	}
	if !errors.Is(err, lock.ErrQuarantined) || !errors.Is(err, lock.ErrNoQuorum) {
		return err
	}
	if left := g.returns.left(ctx); left > 0 {
		return &leasing.UnavailableError{Part: leasing.PartRedis, Cause: &quarantineError{err, left}}
	}
	return err
}

// returns caches when enough nodes are admitted again.
type returns struct {
	locker *lock.Locker // nil: of no Redis nodes

	mu     sync.Mutex
	looked time.Time
	at     time.Time
}

// left is the time until enough nodes are admitted; 0: not known.
func (r *returns) left(ctx context.Context) time.Duration {
	if r.locker == nil {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.looked) > time.Second {
		ctx, cancel := context.WithTimeout(ctx, fenceTimeout)
		defer cancel()
		left := admin.Of(r.locker).QuarantineLeft(ctx)
		r.looked, r.at = time.Now(), time.Now().Add(left)
	}
	return max(0, time.Until(r.at))
}
