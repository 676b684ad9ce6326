package main

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/etcdlock"
	"github.com/fencegate/fencegate/lock/pglock"
	"github.com/fencegate/fencegate/lock/zklock"
)

// waits makes a contender whose cycle uses its wait.
func waits(name string, wait func(ctx context.Context, resource string) (func(context.Context) error, error)) contender {
	return contender{name: name, wait: wait, cycle: func(ctx context.Context, resource string) error {
		release, err := wait(ctx, resource)
		if err != nil {
			return err
		}
		return release(ctx)
	}}
}

func sourced(name string, s leasing.Source) contender {
	return waits(name, func(ctx context.Context, resource string) (func(context.Context) error, error) {
		lease, err := leasing.One(s.Acquire(ctx, leasing.UntilDone, leasing.Request{Resource: name + "/" + resource, TTL: ttl}))
		return func(ctx context.Context) error { return s.Release(ctx, lease.Ref()) }, err
	})
}

// contendSources creates one process's contenders: ours over each source, hand-written locks, and the servers' own.
// done closes them.
func (s *services) contendSources(ctx context.Context, servers []*redisserver.Server) (all []contender, done func(), err error) {
	var closers []func()
	done = func() {
		for _, f := range slices.Backward(closers) {
			f()
		}
	}
	defer func() {
		if err != nil {
			done()
		}
	}()
	gate, err := s.pool(ctx, 8)
	if err != nil {
		return nil, nil, err
	}
	closers = append(closers, gate.Close)
	own, err := s.pool(ctx, 128) // one connection per lock
	if err != nil {
		return nil, nil, err
	}
	closers = append(closers, own.Close)
	client, err := clientv3.New(clientv3.Config{
		Endpoints: s.etcd.Endpoints(), Logger: zap.NewNop(), // the other options are those of etcdlock's documentation
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 2 * time.Second,
	})
	if err != nil {
		return nil, nil, err
	}
	closers = append(closers, func() { _ = client.Close() })
	ours, end, err := s.ours(ctx, servers, client, gate)
	closers = append(closers, end)
	if err != nil {
		return nil, nil, err
	}
	session, err := concurrency.NewSession(client, concurrency.WithTTL(int(ttl/time.Second)))
	if err != nil {
		return nil, nil, err
	}
	closers = append(closers, func() { _ = session.Close() })
	return append(ours, armed(gate), mutexes(session, pgfence.New(gate)), advisory(own), nowait(own)), done, nil
}

// ours creates our sources, each with an armed fence. end closes them, also after an error.
func (s *services) ours(ctx context.Context, servers []*redisserver.Server, client *clientv3.Client, gate *pgxpool.Pool) (all []contender, end func(), err error) {
	var sources []leasing.Source
	end = func() {
		for _, one := range sources {
			_ = one.Close()
		}
	}
	fences := pgfence.New(gate)
	arms := struct{ leasing.Armer }{fences} // without End, like the mutex
	for _, one := range []struct {
		name string
		open func() (leasing.Source, error)
	}{
		{"fencegate-redis", func() (leasing.Source, error) { return overRedis(ctx, servers, fences) }},
		{"fencegate-postgres", func() (leasing.Source, error) { return pglock.New(pglock.Config{Pool: gate}) }},
		{"fencegate-etcd", func() (leasing.Source, error) {
			return etcdlock.New(etcdlock.Config{Client: client, Prefix: "ends", Armer: fences})
		}},
		{"fencegate-etcd-arm", func() (leasing.Source, error) {
			return etcdlock.New(etcdlock.Config{Client: client, Prefix: "arms", Armer: arms})
		}},
		{"fencegate-zookeeper", func() (leasing.Source, error) {
			return zklock.New(zklock.Config{Servers: s.zk.Addrs(), Armer: fences, MaxTTL: ttl})
		}},
	} {
		source, err := one.open()
		if err != nil {
			return nil, end, err
		}
		sources = append(sources, source)
		all = append(all, sourced(one.name, source))
	}
	return all, end, nil
}

func overRedis(ctx context.Context, servers []*redisserver.Server, fences *pgfence.Fence) (leasing.Source, error) {
	l, err := started(ctx, lock.Config{KeyPrefix: lock.Prefix("bench-sources"), Armer: fences}, servers)
	if err != nil {
		return nil, err
	}
	return l.Source(), nil
}

// armed is the fence's own cost for a lease from another source: arming and ending.
func armed(gate *pgxpool.Pool) contender {
	f := pgfence.New(gate)
	var token atomic.Int64
	return contender{name: "arm+end", cycle: func(ctx context.Context, resource string) error {
		seal := fence.NewSeal().Hash()
		a := fence.Arming{Resource: "arm/" + resource, Token: fence.Token(token.Add(1)), SealHash: seal}
		if err := f.Arm(ctx, a); err != nil {
			return err
		}
		return f.End(ctx, fence.Ending{Resource: a.Resource, Token: a.Token, SealHash: seal})
	}}
}

// mutexes are etcd's own mutexes, on one session, which arm the fence.
func mutexes(session *concurrency.Session, fences *pgfence.Fence) contender {
	return waits("etcd-mutex-arm", func(ctx context.Context, resource string) (func(context.Context) error, error) {
		m := concurrency.NewMutex(session, "mutex/"+resource)
		if err := m.Lock(ctx); err != nil {
			return nil, err
		}
		a := fence.Arming{Resource: "mutex/" + resource, Token: fence.Token(m.Header().Revision), SealHash: fence.NewSeal().Hash()}
		if err := fences.Arm(ctx, a); err != nil {
			return nil, errors.Join(err, m.Unlock(ctx))
		}
		return m.Unlock, nil
	})
}

// advisory uses PostgreSQL's session-level advisory locks, without a fence.
func advisory(pool *pgxpool.Pool) contender {
	return waits("pg-advisory", func(ctx context.Context, resource string) (func(context.Context) error, error) {
		conn, err := pool.Acquire(ctx)
		if err != nil {
			return nil, err
		}
		if _, err := conn.Exec(ctx, `SELECT pg_advisory_lock(hashtextextended($1, 0))`, resource); err != nil {
			conn.Release()
			return nil, err
		}
		return func(ctx context.Context) error {
			defer conn.Release()
			var had bool
			err := conn.QueryRow(ctx, `SELECT pg_advisory_unlock(hashtextextended($1, 0))`, resource).Scan(&had)
			if err == nil && !had {
				err = errors.New("the lock was not held")
			}
			return err
		}, nil
	})
}

// nowait locks a row in a transaction, and retries if another holds it. There is no fence.
func nowait(pool *pgxpool.Pool) contender {
	const again = 10 * time.Millisecond
	var rows sync.Map
	return waits("pg-for-update-nowait", func(ctx context.Context, resource string) (func(context.Context) error, error) {
		if _, there := rows.Load(resource); !there {
			if _, err := pool.Exec(ctx, `INSERT INTO jobs VALUES ($1) ON CONFLICT DO NOTHING`, resource); err != nil {
				return nil, err
			}
			rows.Store(resource, true)
		}
		for {
			tx, err := pool.Begin(ctx)
			if err != nil {
				return nil, err
			}
			_, err = tx.Exec(ctx, `SELECT FROM jobs WHERE name = $1 FOR UPDATE NOWAIT`, resource)
			if err == nil {
				return tx.Commit, nil
			}
			err = errors.Join(err, tx.Rollback(ctx))
			if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != "55P03" {
				return nil, err
			}
			select {
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			case <-time.After(again):
			}
		}
	})
}
