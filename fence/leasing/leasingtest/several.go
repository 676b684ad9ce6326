package leasingtest

import (
	"context"
	"errors"
	"testing"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
)

// ArmAll arms one after the other and stops at the first failure.
func (r *register) ArmAll(ctx context.Context, all []fence.Arming) error {
	for _, a := range all {
		if err := r.Arm(ctx, a); err != nil {
			return err
		}
	}
	return nil
}

func (r *register) recorded(resource string) fence.Token {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.tokens[resource]
}

// requests ask for several resources.
func requests(resources ...string) []leasing.Request {
	all := make([]leasing.Request, len(resources))
	for i, resource := range resources {
		all[i] = request(TTL)
		all[i].Resource = resource
	}
	return all
}

// opened is a source that grants several leases at once. false: this one does not, which breaks no rule.
func opened(t testing.TB, open Open, armer leasing.Armer) (leasing.AllSource, bool) {
	t.Helper()
	s, ok := source(t, open, armer).(leasing.AllSource)
	return s, ok
}

func several(t testing.TB, open Open) {
	fences := &register{}
	s, ok := opened(t, open, fences)
	if !ok {
		return
	}
	names := []string{"b", "c", "a"}
	for name, acquire := range map[string]func(context.Context, []leasing.Request) ([]leasing.Lease, error){"try": s.TryAcquireAll, "acquire": s.AcquireAll} {
		leases, err := acquire(t.Context(), requests(names...))
		if err != nil || len(leases) != len(names) {
			t.Fatalf("%s: %d leases, %v", name, len(leases), err)
		}
		for i, lease := range leases {
			if lease.Grant.Resource != names[i] || lease.Grant.Seal.IsZero() || fences.recorded(names[i]) != lease.Grant.Token {
				t.Errorf("%s: lease %d is %v; the fence of %q is at %d", name, i, lease.Grant, names[i], fences.recorded(names[i]))
			}
			if _, err := s.TryAcquire(t.Context(), requests(names[i])[0]); !errors.Is(err, leasing.ErrHeld) {
				t.Errorf("%s: %q: %v; want ErrHeld", name, names[i], err)
			}
		}
		for _, lease := range leases {
			release(t, s, lease)
		}
	}
}

func allOrNone(t testing.TB, open Open) {
	s, ok := opened(t, open, nil)
	if !ok {
		return
	}
	held := take(t, s, requests("b")[0])
	_, err := s.TryAcquireAll(t.Context(), requests("c", "b", "a"))
	if why, ok := errors.AsType[*leasing.HeldError](err); !ok || why.Resource != "b" {
		t.Errorf("one is held: %v; want a HeldError of it", err)
	}
	for name, bad := range map[string][]leasing.Request{
		"none": nil, "one twice": requests("a", "c", "a"), "no TTL": {requests("a")[0], {Resource: "c"}}, "a pattern": requests("a", "c*"),
	} {
		if _, err := s.TryAcquireAll(t.Context(), bad); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("%s: %v; want ErrInvalid", name, err)
		}
	}
	for _, resource := range []string{"a", "c"} {
		free(t, s, resource)
		release(t, s, take(t, s, requests(resource)[0]))
	}
	release(t, s, held)
}

func severalWait(t testing.TB, open Open) {
	a, ok := opened(t, open, nil)
	if !ok {
		return
	}
	b := source(t, open, nil)
	held := take(t, b, requests("a")[0])
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	got, errs := make(chan []leasing.Lease, 1), make(chan error, 1)
	started(t, func() {
		leases, err := a.AcquireAll(ctx, requests("b", "a"))
		if err != nil {
			errs <- err
			return
		}
		got <- leases
	})
	release(t, b, held)
	select {
	case leases := <-got:
		higher(t, leases[1].Grant.Token, held.Grant.Token)
		for _, lease := range leases {
			release(t, a, lease)
		}
	case err := <-errs:
		t.Fatalf("waiting: %v", err)
	}
}
