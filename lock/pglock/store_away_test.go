package pglock_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/lock/pglock"
)

// away is a pool whose new connections are refused while it is away.
type away struct {
	*pgxpool.Pool
	is       atomic.Bool
	connects atomic.Int64
}

func (w world) mayBeAway(t *testing.T) *away {
	t.Helper()
	config, err := pgxpool.ParseConfig(w.locker)
	if err != nil {
		t.Fatal(err)
	}
	pgfence.Configure(config)
	a := &away{}
	host, port, prepare := config.ConnConfig.Host, config.ConnConfig.Port, config.PrepareConn
	config.ConnConfig.Host, config.ConnConfig.Port, config.ConnConfig.Fallbacks = "127.0.0.1", 1, nil
	config.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
		a.connects.Add(1)
		if !a.is.Load() {
			c.Host, c.Port = host, port
		}
		return nil
	}
	config.PrepareConn = func(ctx context.Context, conn *pgx.Conn) (bool, error) {
		if prepare != nil && !a.is.Load() {
			return prepare(ctx, conn)
		}
		return !a.is.Load(), nil
	}
	if a.Pool, err = pgxpool.NewWithConfig(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return a
}

func TestALeaseIsGivenBackAfterARestart(t *testing.T) {
	t.Parallel()
	w := setup(t)
	a := w.mayBeAway(t)
	s := source(t, pglock.Config{Pool: a.Pool, OnAccepted: func(_ context.Context, take func() error) error {
		err := take()
		a.is.Store(true)
		return errors.Join(err, fence.ErrUnknown)
	}})
	if _, err := s.Acquire(t.Context(), leasing.AtOnce, leasing.Request{Resource: "r", TTL: 5 * time.Minute}); !errors.Is(err, fence.ErrUnknown) {
		t.Fatal(err)
	}
	before := a.connects.Load()
	until(t, "it tries again and again", func() bool { return a.connects.Load() > before+12 })
	a.is.Store(false)
	until(t, "the resource is free", func() bool {
		ins, err := leasing.One(w.Inspect(t.Context(), "r"))
		return err == nil && !ins.Locked
	})
}

// The pool's hooks that provide passwords or addresses also apply to the connection that listens.
func TestTheListenerConnectsAsThePoolDoes(t *testing.T) {
	t.Parallel()
	w := setup(t)
	held := w.take(t, "r", ttl)
	s := source(t, pglock.Config{Pool: w.mayBeAway(t).Pool})
	outcome := make(chan error, 1)
	go func() {
		_, err := s.Acquire(t.Context(), leasing.UntilDone, leasing.Request{Resource: "r", TTL: ttl})
		outcome <- err
	}()
	until(t, "it listens", func() bool {
		return ask[bool](t, w, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%fencegate_lease%')`)
	})
	if err := w.Release(t.Context(), held.Ref()); err != nil {
		t.Fatal(err)
	}
	if err := <-outcome; err != nil {
		t.Error(err)
	}
}
