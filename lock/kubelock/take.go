package kubelock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/leases"
)

// armTries bounds how often the token is raised because the fence is higher.
const armTries = 3

// Inspector is an Armer that knows which token a fence records, as [pgfence.Fence] does.
//
// [pgfence.Fence]: https://pkg.go.dev/github.com/fencegate/fencegate/fence/pgfence#Fence
type Inspector interface {
	leasing.Armer
	// Inspect returns the fence's record of a resource, or [fence.ErrNoFence].
	Inspect(ctx context.Context, resource string) (fence.Record, error)
}

// take takes the Lease with a new token, and arms the fence. If that fails, it gives the Lease back.
func (l *Lock) take(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	above, err := l.recorded(ctx)
	if err != nil {
		return l.failed(err, true)
	}
	grant := fence.Grant{Resource: l.cfg.Resource, Seal: fence.NewSeal()}
	ends := deadline(l.clock.Now(), record)
	for try := 1; ; try++ {
		if grant.Token, err = l.next(above); err != nil {
			return l.failed(err, true)
		}
		l.tried = grant.Token
		if err := l.send(ctx, record, grant.Token); err != nil {
			return l.failed(err, isLasting(err))
		}
		err = l.arm(ctx, grant, ends)
		low, isLow := errors.AsType[*fence.NotRaisedError](err)
		if !isLow || try == armTries {
			break
		}
		above = low.Recorded
	}
	if err == nil {
		err = l.term.begin(grant, ends)
	}
	if err != nil {
		l.tried = 0
		if freeErr := l.free(context.WithoutCancel(ctx), grant.Token); freeErr != nil {
			l.cfg.Logger.WarnContext(ctx, "the Lease was not given back; it ends by itself", "lease", l.Describe(), "error", freeErr)
		}
		return l.failed(err, true)
	}
	return nil
}

// recorded returns the fence's token. If the Lease was deleted or restored, it is above the annotation.
func (l *Lock) recorded(ctx context.Context) (fence.Token, error) {
	var recorded fence.Token
	if l.cfg.Armer != nil {
		recorded = l.cfg.Armer.Floor(l.cfg.Resource)
	}
	inspector, ok := l.cfg.Armer.(Inspector)
	if !ok {
		return recorded, nil
	}
	ctx, cancel := l.bounded(ctx)
	defer cancel()
	record, err := inspector.Inspect(ctx, l.cfg.Resource)
	if err != nil && !errors.Is(err, fence.ErrNoFence) {
		return 0, err
	}
	return max(recorded, record.Token), nil
}

// next returns the token above both the annotation and above.
func (l *Lock) next(above fence.Token) (fence.Token, error) {
	if l.lease != nil {
		if text, ok := l.lease.Annotations[Annotation]; ok {
			counter, err := fence.ParseToken(text)
			if err != nil || counter == math.MaxInt64 {
				return 0, &TokenError{Lease: l.cfg.Lease, Text: text}
			}
			above = max(above, counter)
		}
	}
	if above == math.MaxInt64 {
		return 0, &fence.InvalidError{Field: "recorded token", Reason: "is the highest; there is none above it"}
	}
	return above + 1, nil
}

// arm raises the fence, before the Lease's deadline.
func (l *Lock) arm(ctx context.Context, grant fence.Grant, ends clock.Instant) error {
	if l.cfg.Armer == nil {
		return nil
	}
	ctx, cancel := context.WithDeadlineCause(ctx, ends.Time(), leasing.ErrLost)
	defer cancel()
	return l.cfg.Armer.Arm(ctx, fence.Arming{Resource: grant.Resource, Token: grant.Token, SealHash: grant.Seal.Hash(), Holder: l.cfg.Identity})
}

const (
	// endTimeout bounds how long a release waits for the fence.
	endTimeout = 500 * time.Millisecond
	// freeTimeout bounds how long a release waits for the API server.
	freeTimeout = 5 * time.Second
	freePause   = 100 * time.Millisecond
)

// Release ends the leadership: from then on the fence refuses the grant, and the Lease
// is free. It is carried out even if ctx has ended. An elector that still runs renews
// nothing more. It returns [leasing.ErrLost] if the leadership had already ended.
func (l *Lock) Release(ctx context.Context) error {
	lost := l.term.over()
	_ = l.term.lose(errReleased)
	if l.stop != nil {
		l.stop()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.release(context.WithoutCancel(ctx))
	return cmp.Or(lost, err)
}

// release ends the grant, and frees the Lease if it is this candidate's. client-go's
// tryRelease reads the Lease, but decides by an earlier read whether it leads. So an
// elector that was paused frees its successor's Lease; release does not.
func (l *Lock) release(ctx context.Context) error {
	_ = l.term.lose(errReleased)
	token := l.term.token()
	if token > 0 {
		l.endGrant(ctx, token)
	} else if token = l.tried; token == 0 {
		return nil // nothing was taken
	}
	return l.free(ctx, token)
}

func (l *Lock) endGrant(ctx context.Context, token fence.Token) {
	if l.cfg.Armer == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	err := l.cfg.Armer.End(ctx, fence.Ending{Resource: l.cfg.Resource, Token: token})
	if err != nil && !errors.Is(err, fence.ErrStale) {
		l.cfg.Logger.WarnContext(ctx, "the fence did not end the grant of a leader that stepped down; it stays current until the next election",
			"resource", l.cfg.Resource, "token", token, "error", err)
	}
}

// free gives back the Lease if it was taken with the token. It retries for a time while the outcome is unknown. If it
// then finds the Lease gone, or another's, an earlier try has freed it.
func (l *Lock) free(ctx context.Context, token fence.Token) error {
	ctx, cancel := context.WithTimeout(ctx, freeTimeout)
	defer cancel()
	doubt := false // a try may have freed it
	for {
		err := l.read(ctx)
		if isMissing(err) || err == nil && !l.holds(token) {
			if doubt {
				return nil
			}
			return fmt.Errorf("lease %v: %w", l.cfg.Lease, leasing.ErrLost)
		}
		if err == nil {
			err = l.send(ctx, l.freed(), token)
			doubt = doubt || err != nil && !isRefusal(err)
		}
		if err == nil || isLasting(err) && !apierrors.IsConflict(err) {
			return err
		}
		leases.Pause(ctx, freePause)
		if ctx.Err() != nil {
			return err
		}
	}
}

// freed is the record of a Lease without a holder, as client-go writes it. The annotation stays.
func (l *Lock) freed() resourcelock.LeaderElectionRecord {
	now := metav1.Now()
	record := resourcelock.LeaseSpecToLeaderElectionRecord(&l.lease.Spec)
	return resourcelock.LeaderElectionRecord{LeaderTransitions: record.LeaderTransitions, LeaseDurationSeconds: 1, RenewTime: now, AcquireTime: now}
}
