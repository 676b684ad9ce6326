package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredis9 "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/admin"
)

const ttl = 30 * time.Second

// contender takes leases with one of the libraries.
type contender struct {
	name string
	// cycle acquires and releases a resource without contention.
	cycle func(ctx context.Context, resource string) error
	// wait acquires a resource, waiting while another holds it.
	wait func(ctx context.Context, resource string) (release func(context.Context) error, err error)
}

// contend creates the contenders for a group of nodes; done closes them.
func contend(ctx context.Context, servers []*redisserver.Server) (all []contender, done func(), err error) {
	var closers []func()
	done = func() {
		for _, f := range closers {
			f()
		}
	}
	l, err := ours(ctx, servers)
	if err != nil {
		return nil, nil, err
	}
	closers = append(closers, func() { _ = l.Close() })
	all = append(all, fencegate("fencegate", l), contender{name: "fencegate-async", cycle: func(ctx context.Context, resource string) error {
		lease, err := l.TryAcquire(ctx, resource, lock.WithTTL(ttl))
		if err != nil {
			return err
		}
		lease.ReleaseAsync()
		return nil
	}})
	clients := make([]*goredis9.Client, len(servers))
	pools := make([]redis.Pool, len(servers))
	for i, s := range servers {
		clients[i] = goredis9.NewClient(&goredis9.Options{Addr: s.Addr, PoolSize: 128})
		closers = append(closers, func() { _ = clients[i].Close() })
		pools[i] = goredis.NewPool(clients[i])
	}
	rs := redsync.New(pools...)
	all = append(all, redsyncs("redsync", rs), redsyncs("redsync-failfast", rs, redsync.WithFailFast(true)))
	if len(servers) > 1 {
		return all, done, nil
	}
	rueidisLocker, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption:   rueidis.ClientOption{InitAddress: []string{servers[0].Addr}},
		KeyMajority:    1,
		KeyValidity:    ttl,
		NoLoopTracking: true,
	})
	if err != nil {
		done()
		return nil, nil, err
	}
	closers = append(closers, rueidisLocker.Close)
	return append(all, redislocks(redislock.New(clients[0])), rueidislocks(rueidisLocker)), done, nil
}

func fencegate(name string, l *lock.Locker) contender {
	return contender{name: name, cycle: func(ctx context.Context, resource string) error {
		lease, err := l.TryAcquire(ctx, resource, lock.WithTTL(ttl))
		if err != nil {
			return err
		}
		return lease.Release(ctx)
	}, wait: func(ctx context.Context, resource string) (func(context.Context) error, error) {
		lease, err := l.Acquire(ctx, resource, lock.WithTTL(ttl))
		if err != nil {
			return nil, err
		}
		return lease.Release, nil
	}}
}

// apart uses a separate Locker for each waiter, as in separate processes.
func apart(lockers []*lock.Locker) contender {
	var next atomic.Int64
	return contender{name: "fencegate-apart", wait: func(ctx context.Context, resource string) (func(context.Context) error, error) {
		return fencegate("", lockers[next.Add(1)%int64(len(lockers))]).wait(ctx, resource)
	}}
}

func redsyncs(name string, rs *redsync.Redsync, opts ...redsync.Option) contender {
	acquire := func(ctx context.Context, resource string, tries int) (func(context.Context) error, error) {
		m := rs.NewMutex(resource, append(slices.Clip(opts), redsync.WithExpiry(ttl), redsync.WithTries(tries))...)
		if err := m.LockContext(ctx); err != nil {
			return nil, err
		}
		return func(ctx context.Context) error {
			_, err := m.UnlockContext(ctx)
			return err
		}, nil
	}
	return contender{name: name, cycle: func(ctx context.Context, resource string) error {
		release, err := acquire(ctx, resource, 1)
		if err != nil {
			return err
		}
		return release(ctx)
	}, wait: func(ctx context.Context, resource string) (func(context.Context) error, error) {
		return acquire(ctx, resource, 1<<20)
	}}
}

func redislocks(c *redislock.Client) contender {
	acquire := func(ctx context.Context, resource string, o *redislock.Options) (func(context.Context) error, error) {
		held, err := c.Obtain(ctx, resource, ttl, o)
		if err != nil {
			return nil, err
		}
		return held.Release, nil
	}
	return contender{name: "redislock", cycle: func(ctx context.Context, resource string) error {
		release, err := acquire(ctx, resource, nil)
		if err != nil {
			return err
		}
		return release(ctx)
	}, wait: func(ctx context.Context, resource string) (func(context.Context) error, error) {
		return acquire(ctx, resource, &redislock.Options{RetryStrategy: redislock.LinearBackoff(10 * time.Millisecond)})
	}}
}

func rueidislocks(l rueidislock.Locker) contender {
	acquire := func(ctx context.Context, resource string) (func(context.Context) error, error) {
		_, cancel, err := l.WithContext(ctx, resource)
		return func(context.Context) error { cancel(); return nil }, err
	}
	return contender{name: "rueidislock", cycle: func(ctx context.Context, resource string) error {
		release, err := acquire(ctx, resource)
		if err != nil {
			return err
		}
		return release(ctx)
	}, wait: acquire}
}

// ours returns a Locker with its own key space for each size of the group.
func ours(ctx context.Context, servers []*redisserver.Server) (*lock.Locker, error) {
	return started(ctx, lock.Config{KeyPrefix: lock.Prefix(fmt.Sprintf("bench-%d", len(servers)))}, servers)
}

// started returns a Locker over new nodes.
func started(ctx context.Context, cfg lock.Config, servers []*redisserver.Server) (*lock.Locker, error) {
	for _, s := range servers {
		cfg.Nodes = append(cfg.Nodes, lock.Node{Addr: s.Addr})
	}
	l, err := lock.New(cfg)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := admin.Of(l).Init(ctx); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}
