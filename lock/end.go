package lock

import (
	"context"
	"errors"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
)

// endTimeout bounds how long a release waits for the fence. The lock is freed in any case.
const endTimeout = 500 * time.Millisecond

// endGrant makes the fence refuse the grant of a lease that is being released, if there is an Armer. If that fails, the
// grant stays current until the next acquisition, like that of an expired lease. sealHash is nil if only the token is
// known.
func (l *Locker) endGrant(ctx context.Context, ref leasing.Ref, sealHash []byte) {
	if l.cfg.Armer == nil || ref.Token <= 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	inside, end := l.begin(ctx, "end", ref.Resource)
	err := l.cfg.Armer.End(inside, fence.Ending{Resource: ref.Resource, Token: ref.Token, SealHash: sealHash})
	if errors.Is(err, fence.ErrStale) {
		err = nil // a newer grant has superseded it
	}
	if end(err); err != nil {
		l.cfg.Logger.WarnContext(ctx, "the fence did not end the grant of a released lease; it stays current until the next acquisition",
			"resource", ref.Resource, "token", ref.Token, "error", err)
	}
}

// inBackground runs f, and Close waits for it. false: the Locker is closed, and f does not run.
func (l *Locker) inBackground(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.background.Go(f)
	return true
}
