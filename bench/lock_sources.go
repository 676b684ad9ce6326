package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/fencegate/fencegate/bench/internal/run"
	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/etcdserver"
	"github.com/fencegate/fencegate/internal/stack"
	"github.com/fencegate/fencegate/internal/zkserver"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/etcdlock"
	"github.com/fencegate/fencegate/lock/pglock"
	"github.com/fencegate/fencegate/lock/zklock"
)

// members is the size of each group of servers.
const members = 3

// sources are the lease services, and the fenced PostgreSQL.
type sources struct {
	pg    *stack.Postgres
	redis stack.Redis
	etcd  *etcdserver.Cluster
	zk    *zkserver.Ensemble
}

// lockSources compares leases over each source with each other, and with the servers' own locks: their rates, hand-offs
// to another process, and cycles while each server of a group is frozen in turn.
func lockSources(ctx context.Context, b *bench, s *stack.Stack) {
	w := startSources(ctx, s)
	holders, waiters := w.lockers(ctx, s), w.lockers(ctx, s)
	for _, callers := range b.Workers {
		results := b.Measure(ctx, run.Cell{Name: fmt.Sprintf("sources.c%d", callers), Workers: callers}, contenders(holders, callers)...)
		b.AtLeast(fmt.Sprintf("lock.sources.postgres.c%d", callers), results, "fencegate-postgres", "arm+end", 0.8)
		b.AtLeast(fmt.Sprintf("lock.sources.etcd.c%d", callers), results, "fencegate-etcd-arm", "etcd-mutex-arm", 0.95)
	}
	handOffs(ctx, b, "sources", holders, waiters)
	w.frozen(ctx, b, holders)
}

func startSources(ctx context.Context, s *stack.Stack) (w sources) {
	w.pg = run.Must(s.Postgres(ctx, stack.PostgresConfig{
		Durable: true, Settings: map[string]string{"max_connections": "300", "autovacuum": "on"},
		Database: stack.Database{Then: []string{"CREATE TABLE jobs (name text PRIMARY KEY)", "GRANT ALL ON jobs TO " + stack.Gateway}},
	}))
	w.redis = run.Must(s.Redis(ctx, members))
	w.etcd = run.Must(etcdserver.Start(ctx, members, ""))
	s.AtClose(w.etcd.Close)
	w.zk = run.Must(zkserver.Start(ctx, members))
	s.AtClose(w.zk.Close)
	return w
}

// lockers opens one process's clients: ours over each source, each with an armed fence; hand-written locks; and the
// servers' own.
func (w sources) lockers(ctx context.Context, s *stack.Stack) (all []locker) {
	gate, own := gatewayPool(ctx, s, w.pg, 8), gatewayPool(ctx, s, w.pg, 128) // own has a connection for each lock
	client := run.Must(clientv3.New(clientv3.Config{
		Endpoints: w.etcd.Endpoints(), Logger: zap.NewNop(), // the other options are those of etcdlock's documentation
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 2 * time.Second,
	}))
	s.AtClose(client.Close)
	session := run.Must(concurrency.NewSession(client, concurrency.WithTTL(int(ttl/time.Second))))
	s.AtClose(session.Close)
	fences := pgfence.New(gate)
	arms := struct{ leasing.Armer }{fences} // without End, like the mutex
	for _, one := range []struct {
		name   string
		source leasing.Source
	}{
		{"fencegate-redis", opened(ctx, s, w.redis, lock.Config{Armer: fences}).Source()},
		{"fencegate-postgres", run.Must(pglock.New(pglock.Config{Pool: gate}))},
		{"fencegate-etcd", run.Must(etcdlock.New(etcdlock.Config{Client: client, Prefix: "ends", Armer: fences}))},
		{"fencegate-etcd-arm", run.Must(etcdlock.New(etcdlock.Config{Client: client, Prefix: "arms", Armer: arms}))},
		{"fencegate-zookeeper", run.Must(zklock.New(zklock.Config{Servers: w.zk.Addrs(), Armer: fences, MaxTTL: ttl}))},
	} {
		s.AtClose(one.source.Close)
		all = append(all, sourced(one.name, one.source))
	}
	return append(all, armed(fences), mutexes(session, fences), advisory(own), nowait(own))
}

// both makes a locker that acquires in one way, with contention and without.
func both(name string, f acquire) locker { return locker{name: name, try: f, wait: f} }

func sourced(name string, s leasing.Source) locker {
	return both(name, func(ctx context.Context, resource string) (release, error) {
		lease, err := leasing.One(s.Acquire(ctx, leasing.UntilDone, leasing.Request{Resource: name + "/" + resource, TTL: ttl}))
		return func(ctx context.Context) error { return s.Release(ctx, lease.Ref()) }, err
	})
}

// armed is the fence's own cost for a lease from another source: arming and ending.
func armed(f *pgfence.Fence) locker {
	var token atomic.Int64
	return locker{name: "arm+end", try: func(ctx context.Context, resource string) (release, error) {
		seal := fence.NewSeal().Hash()
		a := fence.Arming{Resource: "arm/" + resource, Token: fence.Token(token.Add(1)), SealHash: seal}
		return func(ctx context.Context) error {
			return f.End(ctx, fence.Ending{Resource: a.Resource, Token: a.Token, SealHash: seal})
		}, f.Arm(ctx, a)
	}}
}

// mutexes are etcd's own mutexes, on one session, which arm the fence.
func mutexes(session *concurrency.Session, f *pgfence.Fence) locker {
	return both("etcd-mutex-arm", func(ctx context.Context, resource string) (release, error) {
		m := concurrency.NewMutex(session, "mutex/"+resource)
		if err := m.Lock(ctx); err != nil {
			return nil, err
		}
		a := fence.Arming{Resource: "mutex/" + resource, Token: fence.Token(m.Header().Revision), SealHash: fence.NewSeal().Hash()}
		if err := f.Arm(ctx, a); err != nil {
			return nil, errors.Join(err, m.Unlock(ctx))
		}
		return m.Unlock, nil
	})
}

// advisory uses PostgreSQL's session-level advisory locks, without a fence.
func advisory(pool *pgxpool.Pool) locker {
	return both("pg-advisory", func(ctx context.Context, resource string) (release, error) {
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
func nowait(pool *pgxpool.Pool) locker {
	const again = 10 * time.Millisecond
	var rows sync.Map
	return both("pg-for-update-nowait", func(ctx context.Context, resource string) (release, error) {
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

// frozen freezes each server of a group in turn, and so also the leader.
func (w sources) frozen(ctx context.Context, b *bench, lockers []locker) {
	type server interface {
		Freeze() error
		Thaw() error
	}
	groups := map[string][]server{}
	for i := range members {
		groups["fencegate-redis"] = append(groups["fencegate-redis"], w.redis[i])
		groups["fencegate-etcd"] = append(groups["fencegate-etcd"], w.etcd.Members[i])
		groups["fencegate-zookeeper"] = append(groups["fencegate-zookeeper"], w.zk.Servers[i])
	}
	groups["etcd-mutex-arm"] = groups["fencegate-etcd"]
	for _, l := range lockers {
		group, patience := groups[l.name], time.Minute
		if group == nil {
			continue
		}
		if l.fails = l.name == "etcd-mutex-arm"; l.fails { // it waits for a frozen server until its context ends
			patience = 10 * time.Second
		}
		bounded := func(ctx context.Context, resource string) error {
			ctx, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			return l.cycle(ctx, resource)
		}
		b.Measure(ctx, run.Cell{Name: "sources.frozen", Workers: 1, Ops: 100, Slice: 4 * time.Second, Rounds: members, Cold: true}, run.Contender{
			Name: l.name, MayFail: l.fails,
			Op:     func(ctx context.Context, _ int, n int64) error { return bounded(ctx, fmt.Sprintf("frozen/%d", n%7)) },
			Before: func(_ context.Context, round int) { run.Check(group[round].Freeze()) },
			After: func(ctx context.Context, round int) {
				run.Check(group[round].Thaw())
				// As far as a client can see, the server takes part again after 20 cycles in a row.
				for done, until := 0, time.Now().Add(10*time.Second); done < 20 && time.Now().Before(until) && ctx.Err() == nil; done++ {
					if bounded(ctx, "settle") != nil {
						done = -1
					}
				}
			},
		})
	}
}
