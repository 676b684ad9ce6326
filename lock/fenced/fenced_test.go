package fenced_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/fenced"
)

func TestMain(m *testing.M) { testenv.VerifyMain(m, testenv.LeakOptions()...) }

func clients(t *testing.T, addrs ...string) []redis.UniversalClient {
	t.Helper()
	all := make([]redis.UniversalClient, len(addrs))
	for i, addr := range addrs {
		c := redis.NewClient(&redis.Options{Addr: addr})
		t.Cleanup(func() { _ = c.Close() })
		all[i] = c
	}
	return all
}

// The group is new: nobody has run an Init.
func TestTheFirstLockerOfAGroupGrantsLeasesThatTheDatabaseKnows(t *testing.T) {
	t.Parallel()
	pool := testenv.Postgres(t).Pool(t)
	if _, err := pool.Exec(t.Context(), `CREATE TABLE orders (id bigint PRIMARY KEY, status text); INSERT INTO orders VALUES (1001, 'new'); SELECT fence.protect('orders', resource => 'orders/1001')`); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second is that of a restarted program
		l, err := fenced.New(t.Context(), pool, clients(t, testenv.Redis(t, 1).Addrs...)...)
		if err != nil {
			t.Fatal(err)
		}
		var late fence.Grant
		pay := func(ctx context.Context, grant fence.Grant) error {
			late = grant
			return pgfence.InTx(ctx, pool, grant, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, "UPDATE orders SET status = 'paid' WHERE id = 1001")
				return err
			})
		}
		if err := l.Do(t.Context(), "orders/1001", pay); err != nil {
			t.Errorf("under the lease: %v", err)
		}
		if err := pay(t.Context(), late); !errors.Is(err, fence.ErrStale) {
			t.Errorf("after the lease: %v", err)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestNewSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	pool, bare := testenv.Postgres(t).Pool(t), testenv.PostgresEmpty(t).Pool(t)
	one := clients(t, testenv.Redis(t, 1).Addrs...)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := fenced.New(ctx, pool, clients(t, "127.0.0.1:1")...); !errors.Is(err, lock.ErrNoQuorum) || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "127.0.0.1:1") {
		t.Errorf("no Redis: %v", err)
	}
	if _, err := fenced.New(t.Context(), bare, one...); err == nil || !strings.Contains(err.Error(), "PostgreSQL") {
		t.Errorf("no schema: %v", err)
	}
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	defer cluster.Close()
	if _, err := fenced.New(t.Context(), pool, cluster); !errors.Is(err, lock.ErrCluster) {
		t.Errorf("a Cluster: %v", err)
	}
	if _, err := fenced.New(t.Context(), pool); !errors.Is(err, fence.ErrInvalid) {
		t.Errorf("no client: %v", err)
	}
}
