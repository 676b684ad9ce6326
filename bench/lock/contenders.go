package main

import (
	"context"
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
)

const ttl = 30 * time.Second

// contender acquires and releases a resource that nobody else wants.
type contender struct {
	name  string
	cycle func(ctx context.Context, resource string) error
	close func()
}

func contend(ctx context.Context, servers []*redisserver.Server) ([]contender, error) {
	l, err := ours(ctx, servers)
	if err != nil {
		return nil, err
	}
	clients := make([]*goredis9.Client, len(servers))
	pools := make([]redis.Pool, len(servers))
	for i, s := range servers {
		clients[i] = goredis9.NewClient(&goredis9.Options{Addr: s.Addr, PoolSize: 128})
		pools[i] = goredis.NewPool(clients[i])
	}
	rs := redsync.New(pools...)
	all := []contender{
		{"fencegate", func(ctx context.Context, resource string) error {
			lease, err := l.TryAcquire(ctx, resource, lock.WithTTL(ttl))
			if err != nil {
				return err
			}
			return lease.Release(ctx)
		}, func() { _ = l.Close() }},
		{"fencegate-async", func(ctx context.Context, resource string) error {
			lease, err := l.TryAcquire(ctx, resource, lock.WithTTL(ttl))
			if err != nil {
				return err
			}
			lease.ReleaseAsync()
			return nil
		}, func() {}},
		{"redsync", redsyncCycle(rs), func() {
			for _, c := range clients {
				_ = c.Close()
			}
		}},
		{"redsync-failfast", redsyncCycle(rs, redsync.WithFailFast(true)), func() {}},
	}
	if len(servers) > 1 {
		return all, nil
	}
	rl := redislock.New(clients[0])
	all = append(all, contender{"redislock", func(ctx context.Context, resource string) error {
		held, err := rl.Obtain(ctx, resource, ttl, nil)
		if err != nil {
			return err
		}
		return held.Release(ctx)
	}, func() {}})
	rueidisLocker, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption:   rueidis.ClientOption{InitAddress: []string{servers[0].Addr}},
		KeyMajority:    1,
		KeyValidity:    ttl,
		NoLoopTracking: true,
	})
	if err != nil {
		return nil, err
	}
	return append(all, contender{"rueidislock", func(ctx context.Context, resource string) error {
		_, cancel, err := rueidisLocker.WithContext(ctx, resource)
		if err != nil {
			return err
		}
		cancel()
		return nil
	}, rueidisLocker.Close}), nil
}

func redsyncCycle(rs *redsync.Redsync, opts ...redsync.Option) func(context.Context, string) error {
	return func(ctx context.Context, resource string) error {
		m := rs.NewMutex(resource, append(opts[:len(opts):len(opts)], redsync.WithExpiry(ttl), redsync.WithTries(1))...)
		if err := m.LockContext(ctx); err != nil {
			return err
		}
		_, err := m.UnlockContext(ctx)
		return err
	}
}

// ours is a Locker on a key space of its own for each size of the group.
func ours(ctx context.Context, servers []*redisserver.Server) (*lock.Locker, error) {
	cfg := lock.Config{KeyPrefix: "bench-" + string(rune('0'+len(servers)))}
	for _, s := range servers {
		cfg.Nodes = append(cfg.Nodes, lock.Node{Addr: s.Addr})
	}
	l, err := lock.New(cfg)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return l, l.Init(ctx)
}
