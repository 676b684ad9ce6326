package etcdlock_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock/etcdlock"
)

// contender takes a resource without contention, or waits for it, and gives it back.
type contender struct {
	name    string
	acquire func(ctx context.Context, resource string) (release func() error, err error)
}

// contenders are etcdlock and etcd's own mutex on one session, with the same fence. Where the name says so, the release
// ends the grant in the fence.
func contenders(b *testing.B, fences *pgfence.Fence, endpoints []string) []contender {
	b.Helper()
	source := func(armer leasing.Armer) func(ctx context.Context, resource string) (func() error, error) {
		s := source(b, etcdlock.Config{Client: client(b, endpoints...), Armer: armer, Prefix: fmt.Sprint("p", time.Now().UnixNano())})
		return func(ctx context.Context, resource string) (func() error, error) {
			lease, err := leasing.One(s.Acquire(ctx, leasing.UntilDone, leasing.Request{Resource: resource, TTL: ttl}))
			return func() error { return s.Release(ctx, lease.Ref()) }, err
		}
	}
	mutex := func(arm, end bool) func(ctx context.Context, resource string) (func() error, error) {
		session, err := concurrency.NewSession(client(b, endpoints...), concurrency.WithTTL(60))
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = session.Close() })
		return func(ctx context.Context, resource string) (func() error, error) {
			m := concurrency.NewMutex(session, fmt.Sprintf("mutex-%v-%v/%s", arm, end, resource))
			if err := m.Lock(ctx); err != nil {
				return nil, err
			}
			a := fence.Arming{Resource: fmt.Sprintf("mutex-%v-%v/%s", arm, end, resource), Token: fence.Token(m.Header().Revision), SealHash: fence.NewSeal().Hash()}
			if arm {
				if err := fences.Arm(ctx, a); err != nil {
					return nil, err
				}
			}
			return func() error {
				if end {
					if err := fences.End(ctx, fence.Ending{Resource: a.Resource, Token: a.Token}); err != nil {
						return err
					}
				}
				return m.Unlock(ctx)
			}, nil
		}
	}
	return []contender{
		{"etcdlock", source(nil)},
		{"mutex", mutex(false, false)},
		{"etcdlock+arm+end", source(fences)},
		{"etcdlock+arm", source(endsNothing{fences})},
		{"mutex+arm", mutex(true, false)},
		{"mutex+arm+end", mutex(true, true)},
	}
}

// endsNothing leaves the grant of a released lease current.
type endsNothing struct{ leasing.Armer }

func (endsNothing) End(context.Context, fence.Ending) error { return nil }

// The benchmark acquires and releases. Each caller has its own resource.
func BenchmarkLease(b *testing.B) {
	pg, c := testenv.Postgres(b), cluster(b, 1, "")
	config, err := pgxpool.ParseConfig(pg.GatewayURL)
	if err != nil {
		b.Fatal(err)
	}
	pgfence.Configure(config)
	config.MaxConns = 8
	p, err := pgxpool.NewWithConfig(b.Context(), config)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(p.Close)
	for _, callers := range []int{1, 16, 128} {
		for _, one := range contenders(b, pgfence.New(p), c.Endpoints()) {
			b.Run(fmt.Sprintf("%s/%d", one.name, callers), func(b *testing.B) { spin(b, one, callers) })
		}
	}
}

func spin(b *testing.B, one contender, callers int) {
	var left atomic.Int64
	left.Store(int64(b.N))
	done := make(chan error, callers)
	b.ResetTimer()
	for i := range callers {
		go func() {
			for left.Add(-1) >= 0 {
				release, err := one.acquire(b.Context(), fmt.Sprintf("r%d", i))
				if err == nil {
					err = release()
				}
				if err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	for range callers {
		if err := <-done; err != nil {
			b.Error(err)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "cycles/s")
}
