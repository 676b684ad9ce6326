package leasingtest

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
)

func deadline(t testing.TB, open Open) {
	s := source(t, open, nil)
	begun := time.Now()
	lease := take(t, s, request(TTL))
	if lives := time.Since(begun) + lease.Deadline.Left(); lives > TTL+time.Since(begun) || lives < TTL/2 {
		t.Errorf("the deadline is %v after the call began; the TTL is %v", lives, TTL)
	}
	release(t, s, lease)
}

func extendMoves(t testing.TB, open Open) {
	a, b := source(t, open, nil), source(t, open, nil)
	lease := take(t, a, request(short))
	deadline, err := a.Extend(t.Context(), lease.Ref(), TTL)
	if err != nil {
		t.Fatalf("extend: %v", err)
	}
	if valid := deadline.Left(); valid <= short || valid > TTL {
		t.Errorf("extended by %v; valid for %v", TTL, valid)
	}
	<-time.After(lease.Deadline.Add(short / 4).Left()) // the old end has passed
	if _, err := leasing.One(b.Acquire(t.Context(), leasing.AtOnce, request(TTL))); !errors.Is(err, leasing.ErrHeld) {
		t.Errorf("after the old deadline: %v; want ErrHeld", err)
	}
	release(t, a, lease)
}

func anyProcess(t testing.TB, open Open) {
	a, b := source(t, open, nil), source(t, open, nil)
	lease := take(t, a, request(TTL))
	if _, err := b.Extend(t.Context(), lease.Ref(), TTL); err != nil {
		t.Errorf("extend: %v", err)
	}
	release(t, b, lease)
	release(t, a, take(t, a, request(TTL)))
}

func neverRevived(t testing.TB, open Open) {
	a, b := source(t, open, nil), source(t, open, nil)
	released := take(t, a, request(TTL))
	release(t, a, released)
	expired := take(t, a, request(short))
	<-time.After(expired.Deadline.Left())
	eventually(t, "the lease is over", func() bool { // not seen by b: an inspection may be older than the lease
		ins, err := leasing.One(a.Inspect(t.Context(), expired.Grant.Resource))
		return err == nil && !ins.Locked
	})
	for name, lease := range map[string]leasing.Lease{"released": released, "expired": expired} {
		if _, err := a.Extend(t.Context(), lease.Ref(), TTL); !errors.Is(err, leasing.ErrLost) {
			t.Errorf("%s: %v; want ErrLost", name, err)
		}
	}
	next := takeOnceFree(t, b, request(TTL)) // the old lease was not revived
	higher(t, next.Grant.Token, expired.Grant.Token)
	release(t, b, next)
}

func staleRef(t testing.TB, open Open) {
	a, b := source(t, open, nil), source(t, open, nil)
	old := take(t, a, request(TTL))
	release(t, a, old)
	current := take(t, b, request(TTL))
	if err := a.Release(t.Context(), old.Ref()); !errors.Is(err, leasing.ErrLost) {
		t.Errorf("release: %v; want ErrLost", err)
	}
	if _, err := a.Extend(t.Context(), old.Ref(), TTL); !errors.Is(err, leasing.ErrLost) {
		t.Errorf("extend: %v; want ErrLost", err)
	}
	if _, err := leasing.One(a.Acquire(t.Context(), leasing.AtOnce, request(TTL))); !errors.Is(err, leasing.ErrHeld) {
		t.Errorf("the current holder's lease is gone: %v", err)
	}
	release(t, b, current)
}

func badInput(t testing.TB, open Open) {
	s := source(t, open, nil)
	good := request(TTL)
	for name, r := range map[string]leasing.Request{
		"no resource":       {TTL: TTL},
		"long resource":     {Resource: strings.Repeat("r", 513), TTL: TTL},
		"control character": {Resource: "a\nb", TTL: TTL},
		"pattern":           {Resource: "a*", TTL: TTL},
		"no TTL":            {Resource: good.Resource},
		"negative TTL":      {Resource: good.Resource, TTL: -time.Second},
		"endless TTL":       {Resource: good.Resource, TTL: 1 << 60},
		"short seal hash":   {Resource: good.Resource, TTL: TTL, SealHash: make([]byte, 31)},
		"empty seal hash":   {Resource: good.Resource, TTL: TTL, SealHash: []byte{}},
	} {
		if _, err := leasing.One(s.Acquire(t.Context(), leasing.AtOnce, r)); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("%s: %v; want ErrInvalid", name, err)
		}
	}
	lease := take(t, s, good)
	if _, err := s.Extend(t.Context(), lease.Ref(), 0); !errors.Is(err, fence.ErrInvalid) {
		t.Errorf("extension by nothing: %v; want ErrInvalid", err)
	}
	for _, ref := range []leasing.Ref{{}, {Resource: good.Resource}, {Owner: lease.Owner}} {
		if err := s.Release(t.Context(), ref); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("release of %+v: %v; want ErrInvalid", ref, err)
		}
	}
	if _, err := leasing.One(s.Inspect(t.Context(), "")); !errors.Is(err, fence.ErrInvalid) {
		t.Errorf("inspect: %v; want ErrInvalid", err)
	}
	release(t, s, lease)
}

func inspects(t testing.TB, open Open) {
	a, b := source(t, open, nil), source(t, open, nil)
	if degraded, err := b.Ready(t.Context()); err != nil || degraded != "" {
		t.Errorf("not ready: %q, %v", degraded, err)
	}
	lease := take(t, a, request(TTL))
	var ins leasing.Inspection
	eventually(t, "the holder is seen", func() bool { // an acquisition may still be spreading
		var err error
		ins, err = leasing.One(b.Inspect(t.Context(), lease.Grant.Resource))
		return err == nil && ins.Locked
	})
	if ins.Resource != lease.Grant.Resource || ins.Holder != "worker-a" || ins.Token < lease.Grant.Token || ins.TTL <= 0 || ins.TTL > TTL {
		t.Errorf("%+v", ins)
	}
	surveys(t, b, ins)
	// An operator can release the lease by the inspection's values.
	if err := b.Release(t.Context(), leasing.Ref{Resource: ins.Resource, Owner: ins.Owner, Token: ins.Token}); err != nil {
		t.Errorf("release by what was seen: %v", err)
	}
	if ins, err := leasing.One(b.Inspect(t.Context(), lease.Grant.Resource)); err != nil || ins.Locked || ins.Owner != "" {
		t.Errorf("after the release: %+v, %v", ins, err)
	}
}

// surveys inspects several resources at once.
func surveys(t testing.TB, s leasing.Source, seen leasing.Inspection) {
	all, err := s.Inspect(t.Context(), "free/before", seen.Resource, "free/behind")
	if err != nil || len(all) != 3 {
		t.Fatalf("a survey: %+v, %v", all, err)
	}
	for i, name := range []string{"free/before", seen.Resource, "free/behind"} {
		if all[i].Resource != name || all[i].Locked != (i == 1) {
			t.Errorf("%d: %+v; want %s", i, all[i], name)
		}
	}
	if one := all[1]; one.Holder != seen.Holder || one.Owner != seen.Owner || one.Token != seen.Token || one.TTL <= 0 || one.TTL > TTL {
		t.Errorf("%+v; want %+v", one, seen)
	}
	if all, err := s.Inspect(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("a survey of nothing: %+v, %v", all, err)
	}
	if _, err := s.Inspect(t.Context(), "good", ""); !errors.Is(err, fence.ErrInvalid) {
		t.Errorf("a survey of no name: %v; want ErrInvalid", err)
	}
}

func closes(t testing.TB, open Open) {
	a, b := open(nil), source(t, open, nil)
	lease := take(t, a, request(TTL))
	for range 2 {
		if err := a.Close(); err != nil {
			t.Fatalf("close: %v", err)
		}
	}
	if _, err := leasing.One(a.Acquire(t.Context(), leasing.AtOnce, request(TTL))); !errors.Is(err, leasing.ErrClosed) {
		t.Errorf("acquire: %v; want ErrClosed", err)
	}
	if _, err := leasing.One(b.Acquire(t.Context(), leasing.AtOnce, request(TTL))); !errors.Is(err, leasing.ErrHeld) {
		t.Errorf("the lease ended with its source: %v", err)
	}
	release(t, b, lease)
}
