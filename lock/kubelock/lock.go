package kubelock

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/leases"
)

// Annotation holds the token counter in a Lease.
const Annotation = "fencegate.dev/token"

// Lock is a candidate's Lease for one term: once the leadership has ended, it takes nothing again. It is safe for
// concurrent use. [Run] makes its own. Make one if another library runs the elector, one for each run:
//
//	lock, err := kubelock.New(cfg)
//	…
//	leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{Lock: lock, …
//		OnStartedLeading: func(ctx context.Context) {
//			err := leasing.Under(ctx, lock, work) // the fence is armed already
//		},
//	})
//
// If arming fails, the Lease is given back, and the elector tries again.
type Lock struct {
	cfg    Config
	leases coordinationclient.LeaseInterface
	clock  *clock.Clock
	term   *term
	giveUp func(error) // called before the Lease is taken, with a lasting error; may be nil
	stop   func()      // stops the elector; nil: the caller runs it

	mu    sync.Mutex
	lease *coordinationv1.Lease // as last read or written; nil: it is missing or unread
	tried fence.Token           // the token that the last attempt to take the Lease wrote; 0: there was none
	why   error                 // why the Lease has not been taken yet
}

var (
	_ resourcelock.Interface = (*Lock)(nil)
	_ leasing.HeldLease      = (*Lock)(nil)
)

// New returns a Lock, which connects on first use. The error is a [*fence.InvalidError].
func New(cfg Config) (*Lock, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	return &Lock{cfg: cfg, leases: cfg.Client.Leases(cfg.Lease.Namespace), clock: cmp.Or(cfg.clock, clock.New()), term: newTerm(cfg.Lease)}, nil
}

// Identity returns the candidate's name.
func (l *Lock) Identity() string { return l.cfg.Identity }

// Describe returns the Lease's name.
func (l *Lock) Describe() string { return l.cfg.Lease.String() }

// RecordEvent logs an event of the elector.
func (l *Lock) RecordEvent(what string) {
	l.cfg.Logger.Info(what, "lease", l.Describe(), "identity", l.cfg.Identity)
}

// Grant returns the grant that the leader presents with each write. It fails with [ErrNotLeading] before the
// leadership, and with [leasing.ErrLost] after it.
func (l *Lock) Grant() (fence.Grant, error) { return l.term.current() }

// Context ends with the leadership; its cause says why. The leader's deadline counts from before the update that took or
// renewed the Lease.
func (l *Lock) Context() context.Context { return termContext{l.term.ctx, l.term} }

// Get reads the Lease. If it was deleted, or taken by another, the leadership ends.
func (l *Lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.read(ctx); err != nil {
		return nil, nil, l.failed(err, isLasting(err) && !isMissing(err))
	}
	record := resourcelock.LeaseSpecToLeaderElectionRecord(&l.lease.Spec)
	if record.HolderIdentity != "" && record.HolderIdentity != l.cfg.Identity {
		l.why = &leasing.HeldError{Resource: l.cfg.Resource, Holder: record.HolderIdentity}
	}
	raw, err := json.Marshal(record)
	return record, raw, err
}

// Create creates the Lease, with a token above what the fence records.
func (l *Lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lease = nil
	return l.write(ctx, record)
}

// Update takes the Lease and raises its token, or renews it with
// the same token, or releases it if the record names no holder.
func (l *Lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.lease == nil:
		return errors.New("the Lease was not read")
	case record.HolderIdentity == "":
		return l.release(ctx)
	}
	return l.write(ctx, record)
}

// write takes the Lease, or renews it. An elector that has lost the Lease takes it again if it can, without notifying
// its work (https://github.com/kubernetes/kubernetes/issues/23731 was one way). write refuses to take it again.
func (l *Lock) write(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if err := l.term.over(); err != nil {
		return err
	}
	token := l.term.token()
	if token == 0 {
		return l.take(ctx, record)
	}
	if !l.holds(token) {
		return l.lost()
	}
	sent := l.clock.Now()
	if err := l.send(ctx, record, token); err != nil {
		return l.failed(err, false)
	}
	return l.term.prolong(deadline(sent, record))
}

// deadline is when other candidates take the Lease from a silent leader, by the leader's clock.
func deadline(sent clock.Instant, record resourcelock.LeaderElectionRecord) clock.Instant {
	return leases.Good(sent, time.Duration(record.LeaseDurationSeconds)*time.Second)
}

// holds reports whether the Lease, as last seen, was taken by this candidate with the token.
func (l *Lock) holds(token fence.Token) bool {
	return token > 0 && holder(l.lease) == l.cfg.Identity && l.lease.Annotations[Annotation] == token.String()
}

func holder(lease *coordinationv1.Lease) string {
	if lease == nil || lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

// lost ends the leadership. The reason is the state of the Lease as last seen.
func (l *Lock) lost() error {
	what := "was taken again under this identity, or its annotation was changed"
	switch now := holder(l.lease); {
	case l.lease == nil:
		what = "was deleted"
	case now == "":
		what = "was released by another"
	case now != l.cfg.Identity:
		what = fmt.Sprintf("is held by %q", now)
	}
	return l.term.lose(errors.New("it " + what))
}

// read reads the Lease. The error is the API server's, also for a missing Lease.
func (l *Lock) read(ctx context.Context) error {
	ctx, cancel := l.bounded(ctx)
	defer cancel()
	lease, err := l.leases.Get(ctx, l.cfg.Lease.Name, metav1.GetOptions{})
	if err != nil && !isMissing(err) {
		return l.explain(ctx, err)
	}
	l.lease = lease
	if err != nil {
		l.lease = nil
	}
	if token := l.term.token(); token > 0 && !l.holds(token) {
		_ = l.lost() // the term keeps the error
	}
	return l.explain(ctx, err)
}

// send writes the Lease, unless another has changed it since it was seen.
func (l *Lock) send(ctx context.Context, record resourcelock.LeaderElectionRecord, token fence.Token) (err error) {
	ctx, cancel := l.bounded(ctx)
	defer cancel()
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: l.cfg.Lease.Namespace, Name: l.cfg.Lease.Name}}
	write := func() (*coordinationv1.Lease, error) { return l.leases.Create(ctx, lease, metav1.CreateOptions{}) }
	if l.lease != nil {
		lease = l.lease.DeepCopy()
		write = func() (*coordinationv1.Lease, error) { return l.leases.Update(ctx, lease, metav1.UpdateOptions{}) }
	}
	lease.Spec = resourcelock.LeaderElectionRecordToLeaseSpec(&record)
	metav1.SetMetaDataAnnotation(&lease.ObjectMeta, Annotation, token.String())
	written, err := write()
	if err != nil {
		return l.explain(ctx, err)
	}
	l.lease = written
	return nil
}

// bounded returns a context for one request.
func (l *Lock) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, l.cfg.callTimeout(), errNoAnswer)
}

// explain adds the Lease and the timeout to an error of the API server.
func (l *Lock) explain(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case context.Cause(ctx) == errNoAnswer: //nolint:errorlint // the cause is this very value
		err = fmt.Errorf("no answer within %v: %w", l.cfg.callTimeout(), err)
	}
	return unavailable(l.cfg.Lease, err)
}

// failed records why the Lease was not taken. If waiting does not help, it ends the wait.
func (l *Lock) failed(err error, lasting bool) error {
	switch {
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), isMissing(err): // the next read tells more
	case errors.Is(err, context.Canceled): // the wait was abandoned
	default:
		l.why = err
	}
	if lasting && l.giveUp != nil && l.term.token() == 0 {
		l.giveUp(err)
	}
	return err
}
