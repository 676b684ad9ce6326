package client

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/robustness/history"
)

// memory is a surface without faults: a store with a fence, which answers as if behind an unreliable network.
type memory struct {
	mu      sync.Mutex
	dice    *dice
	at      map[string]*shelf // by resource
	late    sync.WaitGroup    // writes that take effect after they were abandoned
	effects []effect
}

type shelf struct {
	token int64
	until time.Time
	value string
}

type effect struct{ resource, value, overwrote string }

const aSeal = "0123456789abcdef0123456789abcdef"

func (m *memory) acquire(ctx context.Context, a ask) (holding, error) {
	pace := time.NewTicker(10 * time.Millisecond)
	defer pace.Stop()
	for {
		if h, ok := m.take(a); ok {
			return h, nil
		}
		if a.try || ctx.Err() != nil {
			return holding{}, failed(history.Refused, "held", errors.New("held"))
		}
		<-pace.C
	}
}

func (m *memory) take(a ask) (holding, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	resource, until := a.resources[0], time.Now().Add(a.ttl)
	s := m.at[resource]
	if s == nil {
		s = &shelf{}
		m.at[resource] = s
	}
	if time.Now().Before(s.until) {
		return holding{}, false
	}
	s.token, s.until = s.token+1, until
	h := &memoryLease{memory: m, shelf: s, resource: resource, number: s.token}
	return holding{&term{
		grants:   []fence.Grant{{Resource: resource, Token: fence.Token(s.token)}},
		deadline: func() time.Time { return until },
		renew:    func(context.Context, int) (time.Time, error) { return until, nil },
		release:  h.release,
	}, h}, true
}

type memoryLease struct {
	*memory

	shelf    *shelf
	resource string
	number   int64
}

func (h *memoryLease) forget() {}

func (h *memoryLease) release(context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.number == h.shelf.token {
		h.shelf.until = time.Time{}
	}
	return nil
}

func (h *memoryLease) read(context.Context, string) (saw, wrong string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.shelf.value, "", nil
}

func (h *memoryLease) write(ctx context.Context, w write) error {
	w.pause(ctx)
	id := w.set[0].value
	switch h.dice.below(12) {
	case 0:
		return failed(history.Failed, "", errors.New("cut before"))
	case 1:
		return errors.New("cut, and never done")
	case 2:
		_ = h.set(id)
		return errors.New("cut, and done")
	case 3:
		h.late.Go(func() {
			<-time.NewTimer(h.dice.between(0, time.Second)).C
			_ = h.set(id)
		})
		return errors.New("cut, and done later")
	}
	return h.set(id)
}

func (h *memoryLease) set(id string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.number != h.shelf.token {
		return failed(history.Refused, "ZF001", errors.New("stale, "+aSeal))
	}
	h.effects = append(h.effects, effect{h.resource, id, h.shelf.value})
	h.shelf.value = id
	return nil
}
