package kubelock_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/lock/kubelock"
)

const leaseName, resource = "orders", "orders/leader"

// patience bounds waits on a busy machine.
const patience = time.Minute

// config is the configuration of one process.
func config(t testing.TB, s *apiServer, identity string) (kubelock.Config, *network) {
	t.Helper()
	c, n := s.client(t, "candidate")
	return kubelock.Config{
		Client: c, Lease: types.NamespacedName{Namespace: s.namespace, Name: leaseName}, Resource: resource, Identity: identity,
	}, n
}

func newLock(t testing.TB, cfg kubelock.Config) *kubelock.Lock {
	t.Helper()
	lock, err := kubelock.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return lock
}

// elect runs client-go's elector until it leads. Its context ends with cancel.
func elect(t testing.TB, lock resourcelock.Interface, release bool) (cancel func(), ended chan struct{}) {
	t.Helper()
	leads, ended := make(chan struct{}), make(chan struct{})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, ReleaseOnCancel: release,
		LeaseDuration: kubelock.DefaultLeaseDuration, RenewDeadline: kubelock.DefaultRenewDeadline, RetryPeriod: kubelock.DefaultRetryPeriod,
		Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: func(context.Context) { close(leads) }, OnStoppedLeading: func() {}},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	go func() {
		defer close(ended)
		elector.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	await(t, "leads", leads)
	return cancel, ended
}

// crash runs the elector until it leads, and then stops it without a release.
func crash(t testing.TB, lock resourcelock.Interface) {
	t.Helper()
	cancel, ended := elect(t, lock, false)
	cancel()
	await(t, "the end of the elector", ended)
}

// leader is a process in kubelock.Run whose work waits for quit, or until its context ends.
type leader struct {
	ctx   context.Context // of the work; valid, with grant, after leads
	grant fence.Grant
	quit  func() // ends the work
	leads chan struct{}
	ended chan struct{}
	err   error // of Run, after ended
}

// lead runs a process until it leads.
func lead(ctx context.Context, t testing.TB, cfg kubelock.Config) *leader {
	t.Helper()
	l := start(ctx, t, cfg)
	select {
	case <-l.leads:
	case <-l.ended:
		t.Fatalf("Run: %v", l.err)
	case <-time.After(patience):
		t.Fatal("timed out waiting for the leadership")
	}
	return l
}

func start(ctx context.Context, t testing.TB, cfg kubelock.Config) *leader {
	t.Helper()
	quit := make(chan struct{})
	ctx, cancel := context.WithCancel(ctx)
	l := &leader{quit: sync.OnceFunc(func() { close(quit) }), leads: make(chan struct{}), ended: make(chan struct{})}
	go func() {
		defer close(l.ended)
		l.err = kubelock.Run(ctx, cfg, func(ctx context.Context, grant fence.Grant) error {
			l.ctx, l.grant = ctx, grant
			close(l.leads)
			select {
			case <-quit:
			case <-ctx.Done():
			}
			return nil
		})
	}()
	t.Cleanup(func() {
		cancel()
		<-l.ended
	})
	return l
}

// end ends the work and returns Run's error.
func (l *leader) end() error {
	l.quit()
	<-l.ended
	return l.err
}

func await(t testing.TB, what string, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatalf("timed out: %s", what)
	}
}

// until polls for a condition.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.After(patience); !ok(); {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("timed out: %s", what)
		}
	}
}

// memory is a fence in memory that arms and records, and drains no writers.
type memory struct {
	mu     sync.Mutex
	record fence.Record
	arms   []fence.Arming
	err    error
}

func (m *memory) Arm(_ context.Context, all ...fence.Arming) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := all[0] // a Lease has one resource
	m.arms = append(m.arms, a)
	switch {
	case m.err != nil:
		return m.err
	case a.Token <= m.record.Token:
		return &fence.NotRaisedError{Resource: a.Resource, Offered: a.Token, Recorded: m.record.Token}
	}
	m.record.Token = a.Token
	return nil
}

func (m *memory) End(context.Context, fence.Ending) error { return nil }

// Floor is not known: a Lock asks with Inspect, or learns it from a refusal.
func (m *memory) Floor(string) fence.Token { return 0 }

func (m *memory) Raised(context.Context) (bool, error) { return true, nil }

func (m *memory) Inspect(context.Context, string) (fence.Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.record.Token == 0 {
		return m.record, fence.ErrNoFence
	}
	return m.record, nil
}

// onlyArms is a fence without Inspect.
type onlyArms struct{ leasing.Armer }

var errAway = errors.New("the fence is away")
