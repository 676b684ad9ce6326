package etcdlock_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/lock/etcdlock"
)

// wire carries a client's transactions. It can lose messages or answers, and then reports a broken connection.
type wire struct {
	late    atomic.Int32 // so many messages are lost, and arrive with deliver
	silent  atomic.Int32 // so many messages arrive, and their answers are lost
	delayed chan func() error
	etcd    *clientv3.Client // a direct connection
}

func (w *wire) pass(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	lost := status.Error(codes.Unavailable, "the connection broke")
	switch {
	case method != "/etcdserverpb.KV/Txn":
	case w.late.Add(-1) >= 0:
		w.delayed <- func() error {
			return invoke(context.WithoutCancel(ctx), method, req, new(etcdserverpb.TxnResponse), cc, opts...)
		}
		return lost
	case w.silent.Add(-1) >= 0:
		_ = invoke(ctx, method, req, reply, cc, opts...)
		return lost
	}
	return invoke(ctx, method, req, reply, cc, opts...)
}

// deliver delivers the late messages.
func (w *wire) deliver(t *testing.T, n int) {
	t.Helper()
	for range n {
		if err := (<-w.delayed)(); err != nil {
			t.Fatal(err)
		}
	}
}

// wired returns a source over a wire, with a lease.
func wired(t *testing.T) (w *wire, s *etcdlock.Source, lease leasing.Lease, key func() *mvccpb.KeyValue) {
	t.Helper()
	c := cluster(t, 1, "")
	w = &wire{delayed: make(chan func() error, 9), etcd: client(t, c.Endpoints()...)}
	s = source(t, etcdlock.Config{Client: clientOf(t, clientv3.Config{
		Endpoints: c.Endpoints(), DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(w.pass)},
	})})
	return w, s, take(t, s, "r", ttl), func() *mvccpb.KeyValue {
		answer, err := w.etcd.Get(t.Context(), "fencegate/locks/r")
		if err != nil || len(answer.Kvs) != 1 {
			t.Fatalf("%v, %v; want the lease's key", answer, err)
		}
		return answer.Kvs[0]
	}
}

// A message that timed out arrives after a newer extension was confirmed, as if a follower forwarded it late.
func TestALateExtensionShortensNothing(t *testing.T) {
	t.Parallel()
	w, s, lease, key := wired(t)
	for _, given := range []struct {
		up   int32 // messages
		fail bool
	}{{up: 2, fail: true}, {up: 1}} {
		w.late.Store(given.up)
		_, err := s.Extend(t.Context(), lease.Ref(), ttl)
		if (err != nil) != given.fail {
			t.Fatalf("%d messages are late: %v", given.up, err)
		}
		w.late.Store(0)
		if _, err := s.Extend(t.Context(), lease.Ref(), 2*ttl); err != nil {
			t.Fatal(err)
		}
		confirmed := key()
		w.deliver(t, int(given.up))
		if after := key(); after.ModRevision != confirmed.ModRevision || after.Lease != confirmed.Lease {
			t.Errorf("%d messages came late: the key has the etcd lease %x since revision %d; want %x since %d", given.up,
				after.Lease, after.ModRevision, confirmed.Lease, confirmed.ModRevision)
		}
	}
	if err := s.Release(t.Context(), lease.Ref()); err != nil {
		t.Error(err)
	}
}

// The retry finds the key that the first message changed.
func TestAnExtensionWhoseAnswerWasLostIsDone(t *testing.T) {
	t.Parallel()
	w, s, lease, key := wired(t)
	for extensions := range int64(3) {
		w.silent.Store(1)
		deadline, err := s.Extend(t.Context(), lease.Ref(), ttl*time.Duration(extensions+2))
		if err != nil || deadline.Left() <= ttl {
			t.Fatalf("good for %v, %v", deadline.Left(), err)
		}
		if version := key().Version; version != extensions+2 {
			t.Errorf("the key was written %d times after %d extensions; want once for each", version, extensions+1)
		}
	}
}

// An extension that another one overtook is sent again.
func TestAnOvertakenExtensionGoesAnew(t *testing.T) {
	t.Parallel()
	w, s, lease, key := wired(t)
	w.late.Store(2)
	if _, err := s.Extend(t.Context(), lease.Ref(), ttl); err == nil {
		t.Fatal("it had an answer")
	}
	w.late.Store(0)
	w.deliver(t, 2)
	before := key()
	if deadline, err := s.Extend(t.Context(), lease.Ref(), 2*ttl); err != nil || deadline.Left() <= ttl {
		t.Fatalf("good for %v, %v", deadline.Left(), err)
	}
	if after := key(); after.Lease == before.Lease {
		t.Errorf("the key stayed with the etcd lease of the late message")
	}
}

func TestProcessesExtendALeaseInTurn(t *testing.T) {
	t.Parallel()
	c := cluster(t, 1, "")
	a, b := source(t, etcdlock.Config{Client: client(t, c.Endpoints()...)}), source(t, etcdlock.Config{Client: client(t, c.Endpoints()...)})
	lease := take(t, a, "r", ttl)
	for i := range 6 {
		s := []*etcdlock.Source{a, b}[i%2]
		if deadline, err := s.Extend(t.Context(), lease.Ref(), ttl*time.Duration(i+2)/2); err != nil || deadline.Left() <= ttl*time.Duration(i+1)/2 {
			t.Errorf("extension %d: good for %v, %v", i, deadline.Left(), err)
		}
	}
	if err := b.Release(t.Context(), lease.Ref()); err != nil {
		t.Error(err)
	}
}
