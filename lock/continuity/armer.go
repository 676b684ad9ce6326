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

	// lookEvery is the interval of the background checks of PostgreSQL.
	lookEvery = 2 * time.Second
	// lookTimeout bounds one check.
	lookTimeout = 10 * time.Second
	// closeTimeout bounds the last check, in Close.
	closeTimeout = 2 * time.Second
	// trustTries bounds how often trust asks again because a new connection raised a doubt.
	trustTries = 20

	// sourceRedis names a locker's lease source as the database records it.
	sourceRedis = "redis"
)

// ErrChanging reports that a connection to another server, or to this one after a restart, was opened while a fence was
// raised. The lease was not granted. Acquire again.
var ErrChanging = errors.New("PostgreSQL's connections were replaced; acquire again")

// Config is what [Open] needs. Pool and Nodes are required.
type Config struct {
	// Pool configures the connections, from pgxpool.ParseConfig. Their login needs the role fence_gateway. The
	// configuration is copied and passed to [pgfence.Configure].
	Pool *pgxpool.Config
	// Nodes and KeyPrefix are those of the locker's [lock.Config]. If several databases share the nodes, use the
	// database's own prefix from [pgfence.KeyPrefix].
	Nodes     []lock.Node
	KeyPrefix func(context.Context) (string, error)
	// Options are those of the [pgfence.Fence]. Default: none.
	Options []pgfence.Option
	// Logger logs when PostgreSQL stops being trusted, and when it is trusted again. Default: silent.
	Logger *slog.Logger
}

// Armer is a [pgfence.Fence] that arms only on the PostgreSQL that the nodes have recorded, or on a later state of it.
// It is safe for concurrent use.
//
// The Armer owns its connections. It compares each new one with the server that it accepted before. If the server
// differs, it asks the nodes before it uses the connection. Every two seconds it checks again: it has PostgreSQL count
// that fences were raised, and records the count on the nodes.
type Armer struct {
	fence *pgfence.Fence
	pool  *pgxpool.Pool
	nodes *Nodes
	log   *slog.Logger

	looking  chan struct{} // holds one value while the nodes are asked: concurrent checks would disturb each other
	settling singleflight.Group
	lifetime context.Context
	stop     context.CancelFunc
	watching sync.WaitGroup
	logged   string // used by watch only
	closing  sync.Once
	closed   error

	mu       sync.Mutex
	accepted *State // nil: in doubt
	doubts   int    // counts how often it was in doubt
	raised   bool   // a fence was raised since the last beat
	claimed  bool   // the database has recorded its lease source
}

var (
	_ leasing.Armer   = (*Armer)(nil)
	_ lock.EpochStore = (*Armer)(nil)
)

// Open returns an Armer, for the Armer and Epochs of [lock.Config].
// It connects on first use. Close it after the locker.
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

// Close checks once more if fences were raised since the last check, and closes the connections. If that check fails,
// Close returns no error: the nodes then remember an earlier state.
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

// Fence returns the underlying fence, for everything but arming: Inspect, List, Position, Retire. Its connections also
// lead only to a PostgreSQL that the nodes have recorded. Its errors wrap those of Arm.
func (a *Armer) Fence() *pgfence.Fence { return a.fence }

// Arm is [pgfence.Fence.Arm]. It raises nothing if PostgreSQL may have forgotten fences: it returns a
// [*ForgottenError], whose text names the commands of which one has to be run. It also raises nothing with an
// [*OtherDatabaseError], with an [*OtherSourceError], or if the nodes or PostgreSQL can't be asked. [ErrChanging],
// which comes with [fence.ErrUnknown], means that the fence may have been raised on another server.
func (a *Armer) Arm(ctx context.Context, all ...fence.Arming) error {
	what := fmt.Sprintf("arm %d resources", len(all))
	if len(all) == 1 {
		what = fmt.Sprintf("arm %q to %d", all[0].Resource, all[0].Token)
	}
	return a.when(ctx, what, func() error { return a.fence.Arm(ctx, all...) })
}

// End is [pgfence.Fence.End].
func (a *Armer) End(ctx context.Context, e fence.Ending) error { return a.fence.End(ctx, e) }

// Floor is [pgfence.Fence.Floor]. It sends no request.
func (a *Armer) Floor(resource string) fence.Token { return a.fence.Floor(resource) }

// Raised is [pgfence.Fence.Raised].
func (a *Armer) Raised(ctx context.Context) (bool, error) { return a.fence.Raised(ctx) }

// RaiseEpoch is [pgfence.Fence.RaiseEpoch].
func (a *Armer) RaiseEpoch(ctx context.Context, above int64) (int64, error) {
	return a.fence.RaiseEpoch(ctx, above)
}

// Check returns nil if PostgreSQL is the one that the nodes have recorded; otherwise it returns the error that Arm
// would return. Use it in a readiness probe.
func (a *Armer) Check(ctx context.Context) error {
	if err := a.claim(ctx); err != nil {
		return err
	}
	return a.check(ctx)
}

// when calls arm if PostgreSQL is trusted, and checks afterwards that it still is.
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
	// A new connection may have been used for arming.
	if after, err := a.trust(ctx); err != nil || after != before {
		return fmt.Errorf("%s: %w", what, errors.Join(ErrChanging, err, fence.ErrUnknown))
	}
	return nil
}

// claim has the database record its lease source, once.
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

// trust returns nil if all connections so far lead to the accepted PostgreSQL. The number that it returns changes when
// a later doubt arises.
func (a *Armer) trust(ctx context.Context) (doubts int, err error) {
	for range trustTries { // new connections, which are compared, may raise a doubt
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

// settle resolves a doubt. It acquires a connection, which is used only after the nodes were asked.
func (a *Armer) settle(ctx context.Context) error {
	conn, err := a.pool.Acquire(ctx)
	if err == nil {
		conn.Release()
	}
	return err
}

// together calls ask once for all concurrent callers with the same what. While they wait they open no connections.
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

// check asks the nodes even if there is no doubt. If fences were raised here since the last check, PostgreSQL counts
// that, and the nodes record the count.
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

// look compares a connection's server with the nodes' record, and then trusts the connection. If forced is false, it is
// enough that another look has accepted the server of a trusted connection.
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
	var last State
	err := a.nodes.Look(ctx, func(ctx context.Context) (State, error) {
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

// tell logs each change of err once.
func (a *Armer) tell(err error) {
	refused := Refused(err)
	state := "trusted"
	switch {
	case refused:
		state = "refused"
	case err != nil:
		state = "unknown"
	}
	was := a.logged
	a.logged = state
	switch {
	case state == was, state == "trusted" && was == "":
	case refused:
		a.log.Error("no lease is granted", "error", err)
	case err != nil:
		a.log.Warn("failed to verify whether PostgreSQL is the recorded one", "error", err)
	default:
		a.log.Info("PostgreSQL is the one that the Redis nodes have recorded; leases are granted")
	}
}

// watch checks at intervals until ctx ends. It also notices changes that a proxy hides.
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
