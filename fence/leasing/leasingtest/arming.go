package leasingtest

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
)

// register is a fence in memory.
type register struct {
	mu      sync.Mutex
	tokens  map[string]fence.Token
	last    fence.Arming
	failure error                                           // returned by the next calls
	end     func(ctx context.Context, e fence.Ending) error // called for each end, if set
}

func (r *register) End(ctx context.Context, e fence.Ending) error {
	if r.end == nil {
		return nil
	}
	return r.end(ctx, e)
}

func (r *register) Arm(_ context.Context, all ...fence.Arming) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failure != nil {
		return r.failure
	}
	for _, a := range all {
		if recorded := r.tokens[a.Resource]; recorded >= a.Token {
			return &fence.NotRaisedError{Resource: a.Resource, Offered: a.Token, Recorded: recorded}
		}
	}
	if r.tokens == nil {
		r.tokens = make(map[string]fence.Token)
	}
	for _, a := range all {
		r.tokens[a.Resource], r.last = a.Token, a
	}
	return nil
}

// Floor is not known: a source learns it from a refusal.
func (r *register) Floor(string) fence.Token { return 0 }

func (r *register) Raised(context.Context) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.tokens) > 0, nil
}

func (r *register) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failure = err
}

func arms(t testing.TB, open Open) {
	fences := &register{}
	s := source(t, open, fences)
	for name, wait := range ways {
		lease, err := leasing.One(s.Acquire(t.Context(), wait, request(TTL)))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		fences.mu.Lock()
		armed := fences.last
		fences.mu.Unlock()
		if armed.Resource != lease.Grant.Resource || armed.Token != lease.Grant.Token ||
			armed.Holder != "worker-a" || !bytes.Equal(armed.SealHash, lease.Grant.Seal.Hash()) {
			t.Errorf("%s: armed %+v for %v", name, armed, lease.Grant)
		}
		release(t, s, lease)
	}
}

// callersSeal: if the caller has a seal already, the source arms that one. It neither makes nor returns another.
func callersSeal(t testing.TB, open Open) {
	fences := &register{}
	s := source(t, open, fences)
	for name, wait := range ways {
		r := request(TTL)
		r.SealHash = fence.NewSeal().Hash()
		lease, err := leasing.One(s.Acquire(t.Context(), wait, r))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		fences.mu.Lock()
		armed := fences.last
		fences.mu.Unlock()
		if !bytes.Equal(armed.SealHash, r.SealHash) || armed.Resource != r.Resource || armed.Token != lease.Grant.Token {
			t.Errorf("%s: armed %+v for %v; want the seal of the request", name, armed, lease.Grant)
		}
		if lease.Grant.Resource != r.Resource || !lease.Grant.Seal.IsZero() {
			t.Errorf("%s: the lease's grant is %v; want no seal", name, lease.Grant)
		}
		release(t, s, lease)
	}
}

// exceeds: a source that lost its tokens issues one above the recorded token.
func exceeds(t testing.TB, open Open) {
	const recorded = fence.Token(1 << 40)
	fences := &register{tokens: map[string]fence.Token{request(TTL).Resource: recorded}}
	s := source(t, open, fences)
	lease := take(t, s, request(TTL))
	higher(t, lease.Grant.Token, recorded)
	release(t, s, lease)
	next := take(t, s, request(TTL))
	higher(t, next.Grant.Token, lease.Grant.Token)
	release(t, s, next)
}

func failedArm(t testing.TB, open Open) {
	fences := &register{}
	s := source(t, open, fences)
	var last fence.Token
	for name, failure := range map[string]error{
		"away":      errors.New("database is away"),
		"unknown":   errors.Join(errors.New("connection broke"), fence.ErrUnknown),
		"undrained": &fence.UndrainedError{Resource: request(TTL).Resource, Token: 1, Detail: "a prepared transaction"},
	} {
		fences.fail(failure)
		if _, err := leasing.One(s.Acquire(t.Context(), leasing.AtOnce, request(TTL))); !errors.Is(err, failure) {
			t.Errorf("%s: %v; want the Armer's error", name, err)
		}
		fences.fail(nil)
		lease := takeOnceFree(t, s, request(TTL))
		higher(t, lease.Grant.Token, last)
		last = lease.Grant.Token
		release(t, s, lease)
	}
}

// ends: after a release the fence refuses the holder's writes, and a slow or failing fence does not block the
// release.
func ends(t testing.TB, open Open) {
	b := source(t, open, nil)
	var ended []fence.Ending
	var outcome error
	hangs := false
	a := source(t, open, &register{end: func(ctx context.Context, e fence.Ending) error {
		if ins, err := leasing.One(b.Inspect(ctx, e.Resource)); err != nil || !ins.Locked {
			t.Errorf("the resource was freed before its grant ended: %+v, %v", ins, err)
		}
		ended = append(ended, e)
		if hangs {
			<-ctx.Done()
			return ctx.Err()
		}
		return outcome
	}})
	for name, set := range map[string]func(){
		"ended":      func() { outcome = nil },
		"superseded": func() { outcome = &fence.StaleError{Resource: request(TTL).Resource} },
		"away":       func() { outcome = errors.New("database is away") },
		"slow":       func() { hangs = true },
	} {
		outcome, hangs, ended = nil, false, nil
		set()
		lease := take(t, a, request(TTL))
		eventually(t, "the other process sees the lease", func() bool { // what it reads may lag behind
			ins, err := leasing.One(b.Inspect(t.Context(), lease.Grant.Resource))
			return err == nil && ins.Locked
		})
		release(t, a, lease)
		if len(ended) != 1 || ended[0].Resource != lease.Grant.Resource || ended[0].Token != lease.Grant.Token ||
			ended[0].SealHash != nil && !bytes.Equal(ended[0].SealHash, lease.Grant.Seal.Hash()) {
			t.Errorf("%s: ended %+v for %v", name, ended, lease.Grant)
		}
		free := take(t, b, request(TTL))
		release(t, b, free)
	}
}
