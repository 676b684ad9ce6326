package etcdlock_test

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock/etcdlock"
)

// queue starts processes that wait for a resource, one after the other. had returns which have had it, in order.
func queue(t *testing.T, endpoints []string, processes int) (had func() []int) {
	t.Helper()
	order := make(chan int, processes)
	var done sync.WaitGroup
	for i := range processes {
		s := source(t, etcdlock.Config{Client: client(t, endpoints...)})
		done.Go(func() {
			lease, err := leasing.One(s.Acquire(t.Context(), leasing.UntilDone, leasing.Request{Resource: "r", TTL: ttl}))
			if err != nil {
				t.Error(err)
			}
			order <- i
			if err := s.Release(t.Context(), lease.Ref()); err != nil {
				t.Error(err)
			}
		})
		testenv.Eventually(t, "it waits", func() bool { return etcdlock.Waiting(t.Context(), s, "r") == i+1 })
	}
	return func() []int {
		done.Wait()
		close(order)
		var had []int
		for i := range order {
			had = append(had, i)
		}
		return had
	}
}

func TestProcessesAreServedInTheirOrder(t *testing.T) {
	t.Parallel()
	c := cluster(t, 1, "")
	s := source(t, etcdlock.Config{Client: client(t, c.Endpoints()...)})
	lease := take(t, s, "r", ttl)
	had := queue(t, c.Endpoints(), 4)
	if err := s.Release(t.Context(), lease.Ref()); err != nil {
		t.Fatal(err)
	}
	if got := had(); !slices.Equal(got, []int{0, 1, 2, 3}) {
		t.Errorf("they came as %v", got)
	}
	testenv.Eventually(t, "nobody waits", func() bool { return etcdlock.Waiting(t.Context(), s, "r") == 0 })
}

// A watch from a compacted revision breaks. The waiter polls again.
func TestAWaiterOutlivesACompaction(t *testing.T) {
	t.Parallel()
	c := cluster(t, 1, "")
	etcd := client(t, c.Endpoints()...)
	s := source(t, etcdlock.Config{Client: etcd})
	lease := take(t, s, "r", ttl)
	had := queue(t, c.Endpoints(), 2)
	for range 3 {
		answer, err := etcd.Put(t.Context(), "another", "")
		if err == nil {
			_, err = etcd.Compact(t.Context(), answer.Header.Revision, clientv3.WithCompactPhysical())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Members[0].Freeze(); err != nil {
		t.Fatal(err)
	}
	c.Members[0].Kill() // after the restart the watches start again
	if err := c.Members[0].Start(); err != nil {
		t.Fatal(err)
	}
	if err := c.Members[0].Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Release(t.Context(), lease.Ref()); err != nil {
		t.Fatal(err)
	}
	if got := had(); !slices.Equal(got, []int{0, 1}) {
		t.Errorf("they came as %v", got)
	}
}

// A process that died in the queue blocks those behind it until its place expires.
func TestADeadProcessLeavesTheLine(t *testing.T) {
	t.Parallel()
	c := cluster(t, 1, "")
	s := source(t, etcdlock.Config{Client: client(t, c.Endpoints()...)})
	lease := take(t, s, "r", ttl)
	doomed, err := etcdlock.New(etcdlock.Config{Client: client(t, c.Endpoints()...)})
	if err != nil {
		t.Fatal(err)
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = doomed.Acquire(t.Context(), leasing.UntilDone, leasing.Request{Resource: "r", TTL: ttl})
	}()
	testenv.Eventually(t, "it waits", func() bool { return etcdlock.Waiting(t.Context(), s, "r") == 1 })
	etcdlock.Die(doomed)
	<-gone
	next := source(t, etcdlock.Config{Client: client(t, c.Endpoints()...)})
	begun, had := time.Now(), make(chan error, 1)
	go func() {
		_, err := next.Acquire(t.Context(), leasing.UntilDone, leasing.Request{Resource: "r", TTL: ttl})
		had <- err
	}()
	testenv.Eventually(t, "both are in the line", func() bool { return etcdlock.Waiting(t.Context(), s, "r") == 2 })
	if err := s.Release(t.Context(), lease.Ref()); err != nil {
		t.Fatal(err)
	}
	if err := <-had; err != nil || time.Since(begun) > 30*time.Second {
		t.Errorf("%v after %v", err, time.Since(begun))
	}
}

func TestAClosedSourceLeavesTheLine(t *testing.T) {
	t.Parallel()
	c := cluster(t, 1, "")
	s, closed := source(t, etcdlock.Config{Client: client(t, c.Endpoints()...)}), source(t, etcdlock.Config{Client: client(t, c.Endpoints()...)})
	take(t, s, "r", ttl)
	waited := make(chan error, 1)
	go func() {
		_, err := closed.Acquire(t.Context(), leasing.UntilDone, leasing.Request{Resource: "r", TTL: ttl})
		waited <- err
	}()
	testenv.Eventually(t, "it waits", func() bool { return etcdlock.Waiting(t.Context(), s, "r") == 1 })
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	if n := etcdlock.Waiting(t.Context(), s, "r"); n != 0 {
		t.Errorf("%d in the line of a source that is closed", n)
	}
	if err := <-waited; !errors.Is(err, leasing.ErrClosed) {
		t.Errorf("who waited: %v; want ErrClosed", err)
	}
}

// The next attempt finds the lease, and has put the place again by then.
func TestAWaiterLeavesTheLineAfterALostAnswer(t *testing.T) {
	t.Parallel()
	w, s, _, _ := wired(t)
	had := make(chan error, 1)
	go func() {
		_, err := s.Acquire(t.Context(), leasing.UntilDone, leasing.Request{Resource: "r", TTL: ttl})
		had <- err
	}()
	testenv.Eventually(t, "it waits", func() bool { return etcdlock.Waiting(t.Context(), s, "r") == 1 })
	w.silent.Store(1)
	if _, err := w.etcd.Delete(t.Context(), "fencegate/locks/r"); err != nil {
		t.Fatal(err)
	}
	if err := <-had; err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "nobody waits", func() bool {
		places, err := w.etcd.Get(t.Context(), "fencegate/lines/r", clientv3.WithPrefix())
		if err != nil {
			t.Fatal(err)
		}
		for _, place := range places.Kvs { // it must not just expire
			if _, err := w.etcd.KeepAliveOnce(t.Context(), clientv3.LeaseID(place.Lease)); err != nil {
				t.Fatal(err)
			}
		}
		return len(places.Kvs) == 0
	})
}
