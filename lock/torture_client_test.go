package lock_test

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/leases/torture"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/admin"
)

// tortureSetup is the configuration of the processes of a torture.
type tortureSetup struct {
	Broken              string // the safeguard that is removed, if any
	Authority           string // Unix socket of the authority
	Prefix              string
	Armed               bool
	MaxTTL, NodeTimeout time.Duration
	Once                time.Duration // the TTL of the only lease that the process acquires; 0: it acquires many
}

// tortured makes the Locker of a process.
func tortured(setup []byte, addrs []string) (torture.Client, error) {
	var s tortureSetup
	if err := json.Unmarshal(setup, &s); err != nil {
		return torture.Client{}, err
	}
	if s.Broken == "confirm" {
		lock.ConfirmNothing()
	}
	authority := &authorityClient{path: s.Authority}
	cfg := lock.Config{
		KeyPrefix: lock.Prefix(s.Prefix), MaxTTL: s.MaxTTL, Epochs: authority, Nodes: nodesAt(addrs...), NodeTimeout: s.NodeTimeout,
	}
	cfg.Brief()
	if s.Armed {
		cfg.Armer = authority
	}
	l, err := lock.New(cfg)
	if err != nil {
		return torture.Client{}, err
	}
	return torture.Client{
		Source: l.Source(), After: authority.close,
		First:  func(ctx context.Context) error { return s.first(ctx, l) },
		Beside: func(ctx context.Context) { s.operate(ctx, l) },
		Handle: func(ctx context.Context, wait leasing.Wait, r leasing.Request, renewals int) (torture.Handle, error) {
			try, opts := l.TryAcquire, []lock.AcquireOption{lock.WithTTL(r.TTL)}
			if wait {
				try = l.Acquire
			}
			if renewals > 0 {
				opts = append(opts, lock.WithKeepAlive(lock.KeepAlive{Renewals: renewals}))
			}
			lease, err := try(ctx, r.Resource, opts...)
			return handle{lease}, lock.SourceError(err)
		},
	}, nil
}

// handle is a lease with the errors of a source.
type handle struct{ *lock.Lease }

func (h handle) Extend(ctx context.Context, ttl time.Duration) error {
	return lock.SourceError(h.Lease.Extend(ctx, ttl))
}

func (h handle) Release(ctx context.Context) error { return lock.SourceError(h.Lease.Release(ctx)) }

// first starts the nodes, or acquires one lease and waits for its end.
func (s tortureSetup) first(ctx context.Context, l *lock.Locker) error {
	if s.Once == 0 {
		return admin.Of(l).Init(ctx)
	}
	lease, err := l.Acquire(ctx, "r", lock.WithTTL(s.Once))
	if err == nil {
		<-lease.Done()
	}
	return err
}

// operate admits lost nodes, two at once, as careless operators might.
func (s tortureSetup) operate(ctx context.Context, l *lock.Locker) {
	var operators sync.WaitGroup
	for i, node := range admin.Of(l).Status(ctx) {
		operators.Go(func() {
			for ; ctx.Err() == nil; rest(ctx, 20*time.Millisecond) {
				if st := admin.Of(l).Status(ctx)[i]; st.Err == nil && !st.Admitted {
					_ = s.readmit(ctx, l, node.Name) // on failure the next round tries again
				}
			}
		})
	}
	operators.Wait()
}

func (s tortureSetup) readmit(ctx context.Context, l *lock.Locker, node string) error {
	switch s.Broken {
	case "marker":
		return l.Forgive(ctx, node)
	case "quarantine":
		return l.AdmitAtOnce(ctx, node)
	}
	return admin.Of(l).Admit(ctx, node)
}

func rest(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
