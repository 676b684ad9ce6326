package lock_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/fence/leasing/leasingtest"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
)

func TestALockerFollowsTheRulesOfASource(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 3} {
		t.Run(fmt.Sprintf("redis-%d", n), func(t *testing.T) {
			t.Parallel()
			leasingtest.Run(t, func(tb testing.TB) leasingtest.Open {
				r := testenv.Redis(tb, n)
				return openOn(tb, lock.Config{Nodes: nodesAt(r.Addrs...), KeyPrefix: r.Prefix, NodeTimeout: patient})
			})
		})
	}
}

func openOn(tb testing.TB, cfg lock.Config) leasingtest.Open {
	tb.Helper()
	first, err := lock.New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = first.Close() })
	initialise(tb, first)
	return func(armer leasing.Armer) leasing.Source {
		one := cfg
		one.Armer = armer
		l, err := lock.New(one)
		if err != nil {
			tb.Error(err)
			return nil
		}
		return patientSource{l.Source().(leasing.AllSource)}
	}
}

// patientSource makes the calls that do not wait patiently.
type patientSource struct{ leasing.AllSource }

var _ leasing.Surveyor = patientSource{}

func (s patientSource) TryAcquire(ctx context.Context, r leasing.Request) (lease leasing.Lease, err error) {
	err = patiently(ctx, func() error {
		lease, err = s.AllSource.TryAcquire(ctx, r)
		return err
	})
	return lease, err
}

func (s patientSource) TryAcquireAll(ctx context.Context, all []leasing.Request) (leases []leasing.Lease, err error) {
	err = patiently(ctx, func() error {
		leases, err = s.AllSource.TryAcquireAll(ctx, all)
		return err
	})
	return leases, err
}

func (s patientSource) Inspect(ctx context.Context, resource string) (ins leasing.Inspection, err error) {
	err = patiently(ctx, func() error {
		ins, err = s.AllSource.Inspect(ctx, resource)
		return err
	})
	return ins, err
}

func (s patientSource) InspectAll(ctx context.Context, resources []string) (all []leasing.Inspection, err error) {
	err = patiently(ctx, func() error {
		all, err = s.AllSource.(leasing.Surveyor).InspectAll(ctx, resources)
		return err
	})
	return all, err
}
