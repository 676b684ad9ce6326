package leasingtest

import (
	"context"
	"errors"
	"testing"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
)

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

func several(t testing.TB, open Open) {
	s := source(t, open, nil)
	names := []string{"b", "c", "a"}
	for name, wait := range ways {
		leases, err := s.Acquire(t.Context(), wait, requests(names...)...)
		if err != nil || len(leases) != len(names) {
			t.Fatalf("%s: %d leases, %v", name, len(leases), err)
		}
		for i, lease := range leases {
			if lease.Grant.Resource != names[i] || lease.Grant.Seal.IsZero() {
				t.Errorf("%s: lease %d is %v", name, i, lease.Grant)
			}
			if _, err := s.Acquire(t.Context(), leasing.AtOnce, requests(names[i])...); !errors.Is(err, leasing.ErrHeld) {
				t.Errorf("%s: %q: %v; want ErrHeld", name, names[i], err)
			}
		}
		for _, lease := range leases {
			release(t, s, lease)
		}
	}
}

func severalArmed(t testing.TB, open Open) {
	fences := &register{}
	s := source(t, open, fences)
	for name, wait := range ways {
		leases, err := s.Acquire(t.Context(), wait, requests("b", "a")...)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, lease := range leases {
			if recorded := fences.recorded(lease.Grant.Resource); recorded != lease.Grant.Token {
				t.Errorf("%s: %v; its fence is at %d", name, lease.Grant, recorded)
			}
			release(t, s, lease)
		}
	}
}

func allOrNone(t testing.TB, open Open) {
	s := source(t, open, nil)
	held := take(t, s, requests("b")[0])
	_, err := s.Acquire(t.Context(), leasing.AtOnce, requests("c", "b", "a")...)
	if why, ok := errors.AsType[*leasing.HeldError](err); !ok || why.Resource != "b" {
		t.Errorf("one is held: %v; want a HeldError of it", err)
	}
	for name, bad := range map[string][]leasing.Request{
		"none": nil, "one twice": requests("a", "c", "a"), "no TTL": {requests("a")[0], {Resource: "c"}}, "a pattern": requests("a", "c*"),
	} {
		if _, err := s.Acquire(t.Context(), leasing.AtOnce, bad...); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("%s: %v; want ErrInvalid", name, err)
		}
	}
	for _, resource := range []string{"a", "c"} {
		release(t, s, takeOnceFree(t, s, requests(resource)[0]))
	}
	release(t, s, held)
}

func severalWait(t testing.TB, open Open) {
	a, b := source(t, open, nil), source(t, open, nil)
	held := take(t, b, requests("a")[0])
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	got, errs := make(chan []leasing.Lease, 1), make(chan error, 1)
	started(t, func() {
		leases, err := a.Acquire(ctx, leasing.UntilDone, requests("b", "a")...)
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
