package continuity

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/singleflight"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/lock"
)

const (
	sqlBeat = `SELECT fence.beat()`

	// lookEvery is how often PostgreSQL is looked at while nothing else asks.
	lookEvery = 2 * time.Second
	// lookTimeout bounds one look.
	lookTimeout = 10 * time.Second
	// closeTimeout bounds the last look, of Close.
	closeTimeout = 2 * time.Second
	// trustTries bounds how often PostgreSQL is looked at anew because a connection was opened meanwhile.
	trustTries = 20

	// sourceRedis is where a locker's leases come from, as the database records it.
	sourceRedis = "redis"
)

// ErrChanging: while a fence was raised, a connection to another server, or to this one after a restart, was
// opened. The lease was not granted; acquiring again settles it.
var ErrChanging = errors.New("PostgreSQL's connections were replaced meanwhile; acquire again")

// Config is what [Open] needs. Pool and Nodes are required.
type Config struct {
	// Pool is the configuration of connections whose login is in fence_gateway, from pgxpool.ParseConfig. It is
	// copied, and goes through [pgfence.Configure].
	Pool *pgxpool.Config
	// Nodes and KeyPrefix are those of the locker's [lock.Config]. [pgfence.KeyPrefix] has the database's own, for nodes
	// that several databases share. KeyPrefix defaults to "fencegate".
	Nodes     []lock.Node
	KeyPrefix string
	// Options are those of the [pgfence.Fence]. Default: none.
	Options []pgfence.Option
	// Logger hears when PostgreSQL is no longer trusted, and when it is again. Default: silent.
	Logger *slog.Logger
}

// Armer is a [pgfence.Fence] that arms only on a PostgreSQL that the nodes have recorded, or on a later state of
// it. It is safe for concurrent use.
//
// Its connections are the Armer's own. Each new one is compared with the server that was accepted before; where it
// is another one, the nodes are asked before the connection is used. Every two seconds it looks again, has
// PostgreSQL count that fences were raised, and has the nodes remember the count.
type Armer struct {
	fence *pgfence.Fence
	pool  *pgxpool.Pool
	nodes *Nodes
	log   *slog.Logger

	looking  chan struct{} // holds one value while the nodes are asked: looks at the same time would disturb each other
	settling singleflight.Group
	lifetime context.Context
	stop     context.CancelFunc
	watching sync.WaitGroup
	told     string // by watch alone
	closing  sync.Once
	closed   error

	mu       sync.Mutex
	accepted *Seen // nil: in doubt
	doubts   int   // counts how often it was in doubt
	raised   bool  // a fence, since the last beat
	claimed  bool  // the database knows where its leases come from
}

var (
	_ leasing.AllArmer = (*Armer)(nil)
	_ leasing.Ender    = (*Armer)(nil)
	_ leasing.Floorer  = (*Armer)(nil)
	_ leasing.Recorder = (*Armer)(nil)

	_ lock.LongestStore = (*Armer)(nil)
)

// Open makes an Armer, for [lock.Config]'s Armer and Epochs. It connects when it is used. Close it after the locker.
func Open(ctx context.Context, cfg Config) (*Armer, error) {
	if cfg.Pool == nil {
		return nil, &fence.InvalidError{Field: "pool", Reason: "is missing"}
	}
	w, err := New(cfg.Nodes, cfg.KeyPrefix)
	if err != nil {
		return nil, err
	}
	a := &Armer{nodes: w, log: cfg.Logger, looking: make(chan struct{}, 1)}
	if a.log == nil {
		a.log = slog.New(slog.DiscardHandler)
	}
	a.lifetime, a.stop = context.WithCancel(context.Background())
	config := cfg.Pool.Copy()
	pgfence.Configure(config)
	a.configure(config)
	if a.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		a.stop()
		return nil, errors.Join(err, w.Close())
	}
	a.fence = pgfence.New(a.pool, cfg.Options...)
	a.watching.Go(func() { a.watch(a.lifetime) })
	return a, nil
}

// Close looks once more, where fences were raised since the last time, and ends the connections. What keeps that
// look from its end is no error: the nodes then remember an earlier state.
func (a *Armer) Close() error {
	a.closing.Do(func() {
		a.stop()
		a.watching.Wait()
		a.mu.Lock()
		raised := a.raised
		a.mu.Unlock()
		if raised {
			ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
			_ = a.check(ctx)
			cancel()
		}
		a.pool.Close()
		a.closed = a.nodes.Close()
	})
	return a.closed
}

// Fence is what arms, for all that is not arming: Inspect, List, Position, Retire. Its connections too lead only to
// a PostgreSQL that the nodes have recorded; its errors wrap those of Arm.
func (a *Armer) Fence() *pgfence.Fence { return a.fence }

// Arm is [pgfence.Fence.Arm]. It raises nothing where PostgreSQL may have forgotten fences: a [*ForgottenError],
// whose text names the commands of which one has to be run. The same goes for an [*OtherDatabaseError] and an [*OtherSourceError], and where that can't
// be found out: the nodes or PostgreSQL are away. [ErrChanging], which comes with [fence.ErrUnknown], says that the
// fence may have been raised on another server.
func (a *Armer) Arm(ctx context.Context, arming fence.Arming) error {
	return a.when(ctx, fmt.Sprintf("arm %q to %d", arming.Resource, arming.Token), func() error { return a.fence.Arm(ctx, arming) })
}

// ArmAll is [pgfence.Fence.ArmAll], as Arm is Arm.
func (a *Armer) ArmAll(ctx context.Context, all []fence.Arming) error {
	return a.when(ctx, fmt.Sprintf("arm %d resources", len(all)), func() error { return a.fence.ArmAll(ctx, all) })
}

// End is [pgfence.Fence.End].
func (a *Armer) End(ctx context.Context, e fence.Ending) error { return a.fence.End(ctx, e) }

// Floor is [pgfence.Fence.Floor]. It asks nobody.
func (a *Armer) Floor(resource string) fence.Token { return a.fence.Floor(resource) }

// Raised is [pgfence.Fence.Raised].
func (a *Armer) Raised(ctx context.Context) (bool, error) { return a.fence.Raised(ctx) }

// RaiseEpoch is [pgfence.Fence.RaiseEpoch].
func (a *Armer) RaiseEpoch(ctx context.Context, above int64) (int64, error) {
	return a.fence.RaiseEpoch(ctx, above)
}

// RaiseLongest is [pgfence.Fence.RaiseLongest], on a PostgreSQL that the nodes have recorded: another one may say less than
// was recorded.
func (a *Armer) RaiseLongest(ctx context.Context, group string, atLeast time.Duration) (longest fence.LongestTTL, err error) {
	err = a.trusted(ctx, func() error {
		longest, err = a.fence.RaiseLongest(ctx, group, atLeast)
		return err
	})
	if err != nil {
		return fence.LongestTTL{}, fmt.Errorf("record that leases may last %v: %w", atLeast, err)
	}
	return longest, nil
}

// KeepLongest is [pgfence.Fence.KeepLongest], likewise.
func (a *Armer) KeepLongest(ctx context.Context, group string, record int64, kept bool) error {
	return a.trusted(ctx, func() error { return a.fence.KeepLongest(ctx, group, record, kept) })
}

// trusted does what it is given where PostgreSQL is trusted before and after.
func (a *Armer) trusted(ctx context.Context, do func() error) error {
	before, err := a.trust(ctx)
	if err == nil {
		err = do()
	}
	if err != nil {
		return err
	}
	if after, err := a.trust(ctx); err != nil || after != before {
		return errors.Join(ErrChanging, err)
	}
	return nil
}

// Check is nil where PostgreSQL is the one that the nodes have recorded; else the error that Arm would have. For a
// readiness probe.
func (a *Armer) Check(ctx context.Context) error {
	if err := a.claim(ctx); err != nil {
		return err
	}
	return a.check(ctx)
}

// when arms where PostgreSQL is trusted before and after.
func (a *Armer) when(ctx context.Context, what string, arm func() error) error {
	if err := a.together(ctx, "claim", a.claim); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	before, err := a.trust(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	a.mu.Lock()
	a.raised = true
	a.mu.Unlock()
	if err := arm(); err != nil {
		return err
	}
	// It may have been armed on a connection that was new.
	if after, err := a.trust(ctx); err != nil || after != before {
		return fmt.Errorf("%s: %w", what, errors.Join(ErrChanging, err, fence.ErrUnknown))
	}
	return nil
}

// claim has the database record where its leases come from, once.
func (a *Armer) claim(ctx context.Context) error {
	a.mu.Lock()
	claimed := a.claimed
	a.mu.Unlock()
	if claimed {
		return nil
	}
	settled, err := Claim(ctx, a.pool, sourceRedis)
	if settled {
		a.mu.Lock()
		a.claimed = true
		a.mu.Unlock()
	}
	return err
}

// trust returns nil where the connections so far are of the accepted PostgreSQL,
// with a number by which a later call tells whether that has changed since.
func (a *Armer) trust(ctx context.Context) (doubts int, err error) {
	for range trustTries { // others may open connections meanwhile, which are compared
		a.mu.Lock()
		trusted, doubts := a.accepted != nil, a.doubts
		a.mu.Unlock()
		if trusted {
			return doubts, nil
		}
		if err := a.together(ctx, "settle", a.settle); err != nil {
			return 0, err
		}
	}
	return 0, ErrChanging
}

// settle ends a doubt: a connection is acquired only after the nodes have been asked.
func (a *Armer) settle(ctx context.Context) error {
	conn, err := a.pool.Acquire(ctx)
	if err == nil {
		conn.Release()
	}
	return err
}

// together asks once for all who ask the same at the same time. While they wait they open no connections.
func (a *Armer) together(ctx context.Context, what string, ask func(context.Context) error) error {
	asked := a.settling.DoChan(what, func() (any, error) {
		ctx, cancel := context.WithTimeout(a.lifetime, lookTimeout)
		defer cancel()
		return nil, ask(ctx)
	})
	select {
	case answer := <-asked:
		return answer.Err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// check looks, also where there is no doubt. Where fences were raised here since the last time, PostgreSQL counts
// that, and the nodes remember the count.
func (a *Armer) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	conn, err := a.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	if err := a.look(ctx, conn.Conn(), true); err != nil {
		return err
	}
	a.mu.Lock()
	raised := a.raised
	a.raised = false
	a.mu.Unlock()
	if !raised {
		return nil
	}
	if _, err = conn.Exec(ctx, sqlBeat); err == nil {
		err = a.look(ctx, conn.Conn(), true)
	}
	if err != nil {
		a.mu.Lock()
		a.raised = true
		a.mu.Unlock()
	}
	return err
}

// look has the nodes compare what a connection's server says, and then trusts the connection. Where that is not forced,
// it is enough that another look has accepted the server of a trusted connection meanwhile.
func (a *Armer) look(ctx context.Context, conn *pgx.Conn, forced bool) error {
	select {
	case a.looking <- struct{}{}:
		defer func() { <-a.looking }()
	case <-ctx.Done():
		return ctx.Err()
	}
	a.mu.Lock()
	doubts := a.doubts
	settled := !forced && a.accepted != nil && isOf(conn, a.accepted) && isTrusted(conn)
	a.mu.Unlock()
	if settled {
		return nil
	}
	var last Seen
	err := a.nodes.Look(ctx, func(ctx context.Context) (Seen, error) {
		var err error
		last, err = Ask(ctx, conn)
		return last, err
	})
	refused := Refused(err)
	if err == nil || refused {
		mark(conn, last.Identity, err == nil)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case err == nil && doubts == a.doubts:
		a.accepted = &last
	case refused:
		a.doubt()
	}
	return err
}

// tell has the log hear of each change, once.
func (a *Armer) tell(err error) {
	refused := Refused(err)
	state := "trusted"
	switch {
	case refused:
		state = "refused"
	case err != nil:
		state = "unknown"
	}
	was := a.told
	a.told = state
	switch {
	case state == was, state == "trusted" && was == "":
	case refused:
		a.log.Error("no lease is granted", "error", err)
	case err != nil:
		a.log.Warn("can't find out whether PostgreSQL is the one that it was", "error", err)
	default:
		a.log.Info("PostgreSQL is the one that the Redis nodes have recorded; leases are granted")
	}
}

// watch looks now and then, until ctx ends, also for what a proxy in between hides.
func (a *Armer) watch(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := a.check(ctx); ctx.Err() == nil {
			a.tell(err)
		}
	}
}
