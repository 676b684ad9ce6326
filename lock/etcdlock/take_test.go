package etcdlock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock/etcdlock"
)

// pool is a pool with a login that arms, or writes.
func pool(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	p, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// expire ends the etcd lease behind a resource's lease.
func expire(t *testing.T, etcd *clientv3.Client, resource string) {
	t.Helper()
	held, err := etcd.Get(t.Context(), "fencegate/locks/"+resource)
	if err != nil || len(held.Kvs) != 1 {
		t.Fatalf("%v, %v; want the lease's key", held, err)
	}
	if _, err := etcd.Revoke(t.Context(), clientv3.LeaseID(held.Kvs[0].Lease)); err != nil {
		t.Fatal(err)
	}
}

func TestAPausedHoldersWriteIsRefused(t *testing.T) {
	t.Parallel()
	pg, c := testenv.Postgres(t), cluster(t, 1, "")
	fences := pgfence.New(pool(t, pg.GatewayURL))
	etcd := client(t, c.Endpoints()...)
	a := source(t, etcdlock.Config{Client: client(t, c.Endpoints()...), Armer: fences})
	b := source(t, etcdlock.Config{Client: client(t, c.Endpoints()...), Armer: fences})
	old := take(t, a, "r", ttl)
	expire(t, etcd, "r")
	next, err := leasing.One(b.Acquire(t.Context(), leasing.UntilDone, leasing.Request{Resource: "r", TTL: ttl}))
	if err != nil || next.Grant.Token <= old.Grant.Token {
		t.Fatalf("%v, %v after %v", next.Grant, err, old.Grant)
	}
	writers := pool(t, pg.WriterURL)
	nothing := func(pgx.Tx) error { return nil }
	if err := pgfence.InTx(t.Context(), writers, old.Grant, nothing); !errors.Is(err, fence.ErrStale) {
		t.Errorf("the old holder: %v; want ErrStale", err)
	}
	if err := pgfence.InTx(t.Context(), writers, next.Grant, nothing); err != nil {
		t.Errorf("the new holder: %v", err)
	}
	if _, err := a.Extend(t.Context(), old.Ref(), ttl); !errors.Is(err, leasing.ErrLost) {
		t.Errorf("extend: %v; want ErrLost", err)
	}
	if err := b.Release(t.Context(), next.Ref()); err != nil {
		t.Fatal(err)
	}
	if err := pgfence.InTx(t.Context(), writers, next.Grant, nothing); !errors.Is(err, fence.ErrStale) {
		t.Errorf("after the release: %v; want ErrStale", err)
	}
}

func TestALeaseSurvivesItsLeader(t *testing.T) {
	t.Parallel()
	c := cluster(t, 3, "")
	s := source(t, etcdlock.Config{Client: client(t, c.Endpoints()...)})
	other := source(t, etcdlock.Config{Client: client(t, c.Endpoints()...)})
	lease := take(t, s, "r", ttl)
	for i, m := range c.Members { // one after the other, so one of them is the leader
		if err := m.Freeze(); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, "it is extended while a member is frozen", func() error {
			_, err := s.Extend(t.Context(), lease.Ref(), ttl)
			if err != nil && !errors.Is(err, leasing.ErrUnavailable) {
				t.Fatalf("member %d is frozen: %v", i, err)
			}
			return err
		})
		if err := m.Thaw(); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, "the others see it as held", func() bool {
			_, err := other.Acquire(t.Context(), leasing.AtOnce, leasing.Request{Resource: "r", TTL: ttl})
			if err == nil {
				t.Fatal("two holders")
			}
			return errors.Is(err, leasing.ErrHeld)
		})
	}
	if err := s.Release(t.Context(), lease.Ref()); err != nil {
		t.Error(err)
	}
}

// Without a quorum nothing is granted. Requests made during that time leave no lease behind.
func TestAPartitionedMemberGrantsNothing(t *testing.T) {
	t.Parallel()
	c := cluster(t, 3, "")
	s := source(t, etcdlock.Config{Client: client(t, c.Members[0].Addr)})
	lease := take(t, s, "warm", ttl)
	for _, m := range c.Members[1:] {
		if err := m.Freeze(); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := s.Acquire(ctx, leasing.AtOnce, leasing.Request{Resource: "r", TTL: ttl}); !errors.Is(err, leasing.ErrUnavailable) || !leasing.Retryable(err) || ctx.Err() != nil {
		t.Errorf("%v; want a retryable ErrUnavailable before its context ends", err)
	}
	if _, err := s.Extend(t.Context(), lease.Ref(), ttl); !errors.Is(err, leasing.ErrUnavailable) {
		t.Errorf("extend: %v; want ErrUnavailable", err)
	}
	waited := make(chan error, 1)
	go func() {
		_, err := s.Acquire(t.Context(), leasing.UntilDone, leasing.Request{Resource: "waited for", TTL: ttl})
		waited <- err
	}()
	for _, m := range c.Members[1:] {
		if err := m.Thaw(); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-waited; err != nil {
		t.Errorf("who waits while etcd is away: %v", err)
	}
	sooner, stop := context.WithTimeout(t.Context(), ttl/2)
	defer stop()
	if _, err := s.Acquire(sooner, leasing.UntilDone, leasing.Request{Resource: "r", TTL: ttl}); err != nil {
		t.Errorf("the resource is not free long before that lease would end: %v", err)
	}
}

// The etcd lease ends early: an operator revokes it, or the process slept.
func TestAnEtcdLeaseThatEndedEndsItsLeasesOnly(t *testing.T) {
	t.Parallel()
	c := cluster(t, 1, "")
	etcd := client(t, c.Endpoints()...)
	s := source(t, etcdlock.Config{Client: etcd})
	lease := take(t, s, "r", ttl)
	expire(t, etcd, "r")
	for what, err := range map[string]error{"extend": second(s.Extend(t.Context(), lease.Ref(), ttl)), "release": s.Release(t.Context(), lease.Ref())} {
		if !errors.Is(err, leasing.ErrLost) {
			t.Errorf("%s: %v; want ErrLost", what, err)
		}
	}
	if next := take(t, s, "r", ttl); next.Grant.Token <= lease.Grant.Token { // with another etcd lease
		t.Errorf("token %d after %d", next.Grant.Token, lease.Grant.Token)
	}
}

// The answers to an acquisition are lost, and the source is closed.
func TestAClosedSourceGivesBackWhatItMayHave(t *testing.T) {
	t.Parallel()
	w, s, lease, _ := wired(t)
	if err := s.Release(t.Context(), lease.Ref()); err != nil {
		t.Fatal(err)
	}
	w.silent.Store(2)
	if _, err := s.Acquire(t.Context(), leasing.AtOnce, leasing.Request{Resource: "r", TTL: ttl}); !errors.Is(err, leasing.ErrUnavailable) {
		t.Fatalf("%v; want ErrUnavailable", err)
	}
	if ins, err := leasing.One(s.Inspect(t.Context(), "r")); err != nil || !ins.Locked {
		t.Fatalf("%+v, %v: it was not carried out, so this shows nothing", ins, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if answer, err := w.etcd.Get(t.Context(), "fencegate/locks/r"); err != nil || answer.Count != 0 {
		t.Errorf("%v, %v; want no lease", answer, err)
	}
}

func second[T any](_ T, err error) error { return err }

// The machine is suspended while an answer is on its way: that to the transaction, or to the request for its etcd lease.
func TestADeadlineCountsFromBeforeTheMessagesAreSent(t *testing.T) {
	t.Parallel()
	c := cluster(t, 1, "")
	for name, slow := range map[string]struct {
		method string
		longer time.Duration // than the lease its etcd lease lives
	}{"transaction": {method: "/etcdserverpb.KV/Txn"}, "etcd lease": {"/etcdserverpb.Lease/LeaseGrant", time.Second}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const late = 20 * time.Second
			cfg := etcdlock.Config{}
			machine := cfg.WithClock()
			suspends := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				err := invoke(ctx, method, req, reply, cc, opts...)
				if method == slow.method {
					machine.Suspend(late)
				}
				return err
			}
			cfg.Client = clientOf(t, clientv3.Config{Endpoints: c.Endpoints(), DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(suspends)}})
			s := source(t, cfg)
			lease := take(t, s, name, ttl)
			inTime := func(what string, deadline clock.Instant, ttl time.Duration) {
				t.Helper()
				if left := deadline.Left(); left <= 0 || left > ttl+slow.longer-late {
					t.Errorf("%s: good for %v, %v after it was sent", what, left, late)
				}
			}
			inTime("a lease", lease.Deadline, ttl)
			extended, err := s.Extend(t.Context(), lease.Ref(), 2*ttl)
			if err != nil {
				t.Fatal(err)
			}
			inTime("an extension", extended, 2*ttl)
			if machine.Suspend(2 * ttl); !extended.Passed() {
				t.Errorf("good for %v after a suspension that no timer noticed", extended.Left())
			}
		})
	}
}
