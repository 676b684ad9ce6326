package client

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/robustness/history"
)

func init() { //nolint:gochecknoinits // a table of surfaces whose parts are in several files
	makers["library"] = newLibrary
}

// nodeTimeout is how long the library waits for a Redis node. It exceeds the default, because the machine is busy.
const nodeTimeout = 250 * time.Millisecond

// library is a program without a gateway: package lock with a pgfence Armer, and pgfence.InTx.
type library struct {
	rows

	locker  *lock.Locker
	arming  *pgxpool.Pool
	writing *pgxpool.Pool
	dice    *dice
}

func newLibrary(e *env) (_ surface, err error) {
	l := &library{dice: e.dice}
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	if l.arming, err = pool(e.cfg.FenceURL, 2*e.cfg.Workers+2); err != nil {
		return nil, err
	}
	if l.writing, err = pool(e.cfg.WriterURL, 4*e.cfg.Workers+4); err != nil {
		return nil, err
	}
	armer := pgfence.New(l.arming)
	config := lock.Config{
		Armer: armer, Epochs: armer, KeyPrefix: lock.Prefix(e.cfg.Prefix), MaxTTL: e.cfg.MaxTTL, NodeTimeout: nodeTimeout,
	}
	for _, addr := range e.cfg.Redis {
		config.Nodes = append(config.Nodes, lock.Node{Addr: addr})
	}
	l.locker, err = lock.New(config)
	return l, err
}

// pool is configured as in docs/library.md. It connects on first use.
func pool(address string, most int) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(address)
	if err != nil {
		return nil, err
	}
	if config.ConnConfig.ConnectTimeout == 0 {
		config.ConnConfig.ConnectTimeout = connectTimeout
	}
	config.MaxConns = int32(most)
	config.MinConns = 0
	config.MaxConnIdleTime = 30 * time.Second
	pgfence.Configure(config)
	return pgxpool.NewWithConfig(context.Background(), config)
}

func (l *library) close() {
	if l.locker != nil {
		_ = l.locker.Close()
	}
	for _, p := range []*pgxpool.Pool{l.arming, l.writing} {
		if p != nil {
			p.Close()
		}
	}
}

func (l *library) acquire(ctx context.Context, a ask) (holding, error) {
	options := []lock.AcquireOption{lock.WithTTL(a.ttl), lock.WithHolder(a.id)}
	if l.dice.chance(5) {
		options = append(options, lock.WithKeepAlive(lock.KeepAlive{Renewals: 1 + l.dice.below(3)}))
	}
	acquire := l.locker.Acquire
	if a.try {
		acquire = l.locker.TryAcquire
	}
	lease, err := acquire(ctx, a.resource, options...)
	if err != nil {
		return nil, lockFailure(err)
	}
	grant, err := lease.Grant()
	if err != nil {
		return nil, errors.Join(lockFailure(err), lease.Release(ctx))
	}
	return &libraryLease{library: l, lease: lease, grant: grant, ttl: a.ttl}, nil
}

// lockFailure classifies package lock's errors: except for
// fence.ErrUnknown, nothing was acquired, extended or confirmed.
func lockFailure(err error) error {
	if err == nil {
		return nil
	}
	f := &failure{outcome: history.Failed, err: err}
	if held, ok := errors.AsType[*leasing.HeldError](err); ok {
		f.holder = held.Holder
	}
	refusal, refused := fence.CodeOf(err)
	switch {
	case errors.Is(err, lock.ErrHeld):
		f.outcome, f.code = history.Refused, "held"
	case errors.Is(err, lock.ErrLost), errors.Is(err, lock.ErrReleased):
		f.outcome, f.code = history.Refused, "lease_lost"
	case refused:
		f.outcome, f.code = history.Refused, refusal.SQLState
	case errors.Is(err, lock.ErrNoQuorum):
		f.code = "no_quorum"
	}
	if errors.Is(err, fence.ErrUnknown) {
		f.outcome = history.Unknown
	}
	return f
}

// libraryLease keeps its first grant, so that its holder can write after the end.
type libraryLease struct {
	*library

	lease *lock.Lease
	grant fence.Grant
	ttl   time.Duration
}

func (h *libraryLease) token() int64        { return int64(h.grant.Token) }
func (h *libraryLease) deadline() time.Time { return h.lease.Deadline().Time() }
func (h *libraryLease) forget()             {}

func (h *libraryLease) renew(ctx context.Context) error {
	return lockFailure(h.lease.Extend(ctx, h.ttl))
}

func (h *libraryLease) release(ctx context.Context) error { return h.giveBack(ctx) }

func (h *libraryLease) giveBack(ctx context.Context) error {
	err := h.lease.Release(ctx)
	if errors.Is(err, lock.ErrNoQuorum) {
		return &failure{outcome: history.Unknown, code: "no_quorum", err: err}
	}
	return lockFailure(err)
}

func (h *libraryLease) read(ctx context.Context, register string) (saw, wrong string, err error) {
	return poolRead(ctx, h.writing, register)
}

func poolRead(ctx context.Context, pool *pgxpool.Pool, register string) (saw, wrong string, err error) {
	err = pool.QueryRow(ctx, selectRow, register[len(rowKind):]).Scan(&saw)
	return saw, "", sqlFailure(err, false)
}

func (h *libraryLease) write(ctx context.Context, w write) error {
	return poolWrite(ctx, h.writing, rowWrite{write: w, resource: h.grant.Resource, token: h.token(), grant: &h.grant})
}

// resolve is how long a program tries to find out the outcome of a COMMIT without an answer.
const resolve = time.Second

// poolWrite writes with pgfence, in any of its ways.
func poolWrite(ctx context.Context, pool *pgxpool.Pool, w rowWrite) error {
	if w.chance(5) {
		w.pause(ctx)
		batch := new(pgx.Batch)
		batch.Queue(updateRow, w.id, w.token, w.resource)
		tags, err := pgfence.ExecBatch(ctx, pool, pgx.TxOptions{}, []fence.Grant{*w.grant}, batch)
		if err == nil && tags[0].RowsAffected() != 1 {
			return errNoRow
		}
		return inTxFailure(err)
	}
	var options pgfence.TxOptions
	switch {
	case w.chance(6):
		options.IsoLevel = pgx.RepeatableRead
	case w.chance(5):
		options.IsoLevel = pgx.Serializable
	}
	if w.chance(3) {
		options.Resolve = resolve
	}
	began := history.Now()
	return inTxFailure(pgfence.InTxAll(ctx, pool, options, []fence.Grant{*w.grant}, func(tx pgx.Tx) error {
		if err := change(ctx, tx, w, began); err != nil {
			return err
		}
		w.pause(ctx)
		return nil
	}))
}
