package gateway

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencegate/fencegate/client/wire"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/gateway/api"
	"github.com/fencegate/fencegate/internal/pgtext"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/continuity"
	"github.com/fencegate/fencegate/lock/lockmetrics"
)

var (
	errKeysUnknown = fmt.Errorf("%w: the prefix of this database's Redis keys is not known until PostgreSQL answers", leasing.ErrUnavailable)
	errNotAdmitted = fmt.Errorf("%w: the Redis nodes are being admitted", leasing.ErrUnavailable)
)

// keyed is a source of leases that fails until the prefix of its keys is known and its nodes are admitted. A node that
// is asked earlier would look as if it had lost its data.
type keyed struct {
	mu     sync.Mutex
	source leasing.Source // nil: not known yet
	asked  bool           // the nodes are being admitted
	closed bool
}

var (
	_ leasing.AllSource = (*keyed)(nil)
	_ leasing.Redundant = (*keyed)(nil)
	_ leasing.Surveyor  = (*keyed)(nil)
)

func (k *keyed) open() (leasing.Source, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.closed:
		return nil, leasing.ErrClosed
	case k.source == nil && k.asked:
		return nil, &api.UnavailableError{Part: wire.PartRedis, Cause: errNotAdmitted}
	case k.source == nil:
		return nil, &api.UnavailableError{Part: wire.PartPostgres, Cause: errKeysUnknown}
	}
	return k.source, nil
}

// asks records that the nodes are being admitted.
func (k *keyed) asks() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asked = true
}

// give sets the source. If k is closed, give closes the source.
func (k *keyed) give(source leasing.Source) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.source = source; k.closed {
		_ = source.Close() // nobody is left to report it to
	}
}

// Close closes the source, and one that is given later.
func (k *keyed) Close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed = true; k.source == nil {
		return nil
	}
	return k.source.Close()
}

func (k *keyed) TryAcquire(ctx context.Context, r leasing.Request) (leasing.Lease, error) {
	source, err := k.open()
	if err != nil {
		return leasing.Lease{}, err
	}
	return source.TryAcquire(ctx, r)
}

// InspectAll inspects in one round once the prefix is known.
func (k *keyed) InspectAll(ctx context.Context, resources []string) ([]leasing.Inspection, error) {
	source, err := k.open()
	if err != nil {
		return nil, err
	}
	return source.(leasing.Surveyor).InspectAll(ctx, resources)
}

// Acquire does not wait for the prefix.
func (k *keyed) Acquire(ctx context.Context, r leasing.Request) (leasing.Lease, error) {
	source, err := k.open()
	if err != nil {
		return leasing.Lease{}, err
	}
	return source.Acquire(ctx, r)
}

func (k *keyed) all() (leasing.AllSource, error) {
	source, err := k.open()
	if err != nil {
		return nil, err
	}
	several, ok := source.(leasing.AllSource)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	return several, nil
}

// TryAcquireAll implements [leasing.AllSource].
func (k *keyed) TryAcquireAll(ctx context.Context, all []leasing.Request) ([]leasing.Lease, error) {
	source, err := k.all()
	if err != nil {
		return nil, err
	}
	return source.TryAcquireAll(ctx, all)
}

// AcquireAll implements [leasing.AllSource].
func (k *keyed) AcquireAll(ctx context.Context, all []leasing.Request) ([]leasing.Lease, error) {
	source, err := k.all()
	if err != nil {
		return nil, err
	}
	return source.AcquireAll(ctx, all)
}

func (k *keyed) Extend(ctx context.Context, ref leasing.Ref, ttl time.Duration) (time.Duration, error) {
	source, err := k.open()
	if err != nil {
		return 0, err
	}
	return source.Extend(ctx, ref, ttl)
}

func (k *keyed) Release(ctx context.Context, ref leasing.Ref) error {
	source, err := k.open()
	if err != nil {
		return err
	}
	return source.Release(ctx, ref)
}

func (k *keyed) Inspect(ctx context.Context, resource string) (leasing.Inspection, error) {
	source, err := k.open()
	if err != nil {
		return leasing.Inspection{}, err
	}
	return source.Inspect(ctx, resource)
}

func (k *keyed) Ready(ctx context.Context) error {
	source, err := k.open()
	if err != nil {
		return err
	}
	return source.Ready(ctx)
}

// Degraded returns "" while there is no source: Ready reports that.
func (k *keyed) Degraded(ctx context.Context) string {
	source, err := k.open()
	if err != nil {
		return ""
	}
	if several, ok := source.(leasing.Redundant); ok {
		return several.Degraded(ctx)
	}
	return ""
}

// watched is the locker for the metrics, once there is one.
type watched struct{ locker atomic.Pointer[lock.Locker] }

var _ lockmetrics.Watched = (*watched)(nil)

func (w *watched) Waiters() int {
	if l := w.locker.Load(); l != nil {
		return l.Waiters()
	}
	return 0
}

// Returns is the time until a quorum of nodes is out of quarantine; 0: not known.
func (w *watched) Returns(ctx context.Context) time.Duration {
	if l := w.locker.Load(); l != nil {
		return l.Returns(ctx)
	}
	return 0
}

func (w *watched) Status(ctx context.Context) []lock.NodeStatus {
	if l := w.locker.Load(); l != nil {
		return l.Status(ctx)
	}
	return nil
}

func (w *watched) Leaks(ctx context.Context) ([]lock.Leak, error) {
	if l := w.locker.Load(); l != nil {
		return l.Leaks(ctx)
	}
	return nil, errKeysUnknown
}

// ownHistory keeps the history on the nodes below the database's own prefix, once that is known.
type ownHistory struct {
	mu     sync.Mutex
	nodes  *continuity.Nodes // nil: not known yet
	prefix string
	closed bool
}

var _ history = (*ownHistory)(nil)

// Look is [continuity.Nodes.Look]. It fails if the database has been given a new group, which needs another record and
// other keys.
func (o *ownHistory) Look(ctx context.Context, ask func(context.Context) (continuity.Seen, error)) error {
	o.mu.Lock()
	nodes, prefix := o.nodes, o.prefix
	o.mu.Unlock()
	if nodes == nil {
		return errKeysUnknown
	}
	return nodes.Look(ctx, func(ctx context.Context) (continuity.Seen, error) {
		seen, err := ask(ctx)
		if err == nil && seen.KeyPrefix() != prefix {
			err = &continuity.OtherDatabaseError{Is: seen, KeyPrefix: prefix}
		}
		return seen, err
	})
}

// learn sets the prefix.
func (o *ownHistory) learn(nodes []lock.Node, prefix string) error {
	w, err := continuity.New(nodes, prefix)
	if err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return w.Close()
	}
	o.nodes, o.prefix = w, prefix
	return nil
}

// Close ends the connections.
func (o *ownHistory) Close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed = true; o.nodes == nil {
		return nil
	}
	return o.nodes.Close()
}

// learnKeys asks PostgreSQL for the prefix of the database's keys until it answers, and creates the locker with it. It
// calls failed after each failed attempt. If ctx ends first, the error is ctx's.
func (g *Gateway) learnKeys(ctx context.Context, failed func()) (*lock.Locker, error) {
	var said time.Time
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		prefix, err := g.askPrefix(ctx)
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err == nil:
			g.log.Info("the prefix of this database's Redis keys is known", "prefix", prefix)
			if g.own != nil {
				err = g.own.learn(g.cfg.RedisNodes, prefix)
			}
			if err != nil {
				return nil, err
			}
			return g.newLocker(prefix)
		case time.Since(said) >= remindEvery:
			said = time.Now()
			g.log.Warn("no leases are granted yet; requests that need no lease are served", "step", "ask PostgreSQL for the prefix of its Redis keys", "error", pgtext.Of(err))
		}
		failed()
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(pause):
		}
	}
}

func (g *Gateway) askPrefix(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	return pgfence.KeyPrefix(ctx, g.pool)
}
