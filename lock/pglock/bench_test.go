package pglock_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock/pglock"
)

// The benchmark compares acquiring and releasing a lease with the fence's own cost for a lease from another source:
// arming and ending. Each caller has its own resource.
func BenchmarkLease(b *testing.B) {
	pg := testenv.Postgres(b)
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
	f := pgfence.New(p)
	s, err := pglock.New(pglock.Config{Pool: p})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = s.Close() })
	var named atomic.Int64
	var token atomic.Int64
	for _, c := range []struct {
		name string
		run  func(resource string) error
	}{
		{"arm+end", func(resource string) error {
			seal := fence.NewSeal().Hash()
			a := fence.Arming{Resource: resource, Token: fence.Token(token.Add(1)), SealHash: seal}
			if err := f.Arm(b.Context(), a); err != nil {
				return err
			}
			return f.End(b.Context(), fence.Ending{Resource: resource, Token: a.Token, SealHash: seal})
		}},
		{"acquire+release", func(resource string) error {
			lease, err := leasing.One(s.Acquire(b.Context(), leasing.AtOnce, leasing.Request{Resource: resource, TTL: ttl}))
			if err != nil {
				return err
			}
			return s.Release(b.Context(), lease.Ref())
		}},
	} {
		for _, callers := range []int{1, 16, 128} {
			b.Run(fmt.Sprintf("%s/%d", c.name, callers), func(b *testing.B) {
				runs := make([]func() error, callers)
				for i := range runs {
					resource := fmt.Sprintf("r%d", named.Add(1))
					runs[i] = func() error { return c.run(resource) }
				}
				together(b, runs)
			})
		}
	}
}

// together shares the benchmark's iterations among callers.
func together(b *testing.B, callers []func() error) {
	b.Helper()
	var left atomic.Int64
	left.Store(int64(b.N))
	done := make(chan error, len(callers))
	b.ResetTimer()
	for _, run := range callers {
		go func() {
			for left.Add(-1) >= 0 {
				if err := run(); err != nil {
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
}
