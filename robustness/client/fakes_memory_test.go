package client

import (
	"context"
	"errors"
	"sync"
	"time"

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
	token    int64
	released bool
	until    time.Time
	value    string
}

type effect struct{ resource, value, overwrote string }

func (m *memory) registers(resource string) []string { return []string{"row:" + resource} }
func (m *memory) close()                             { m.late.Wait() }

func (m *memory) acquire(ctx context.Context, a ask) (holding, error) {
	pace := time.NewTicker(10 * time.Millisecond)
	defer pace.Stop()
	for {
		if h, ok := m.take(a); ok {
			return h, nil
		}
		if a.try {
			return nil, &failure{outcome: history.Refused, code: "held", err: errors.New("held")}
		}
		select {
		case <-pace.C:
		case <-ctx.Done():
			return nil, &failure{outcome: history.Refused, code: "held", err: ctx.Err()}
		}
	}
}

func (m *memory) take(a ask) (holding, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.at[a.resource]
	if s == nil {
		s = &shelf{released: true}
		m.at[a.resource] = s
	}
	if !s.released && time.Now().Before(s.until) {
		return nil, false
	}
	s.token, s.released, s.until = s.token+1, false, time.Now().Add(a.ttl)
	return &memoryLease{memory: m, shelf: s, resource: a.resource, number: s.token, until: s.until}, true
}

type memoryLease struct {
	*memory

	shelf    *shelf
	resource string
	number   int64
	until    time.Time
}

func (h *memoryLease) token() int64                { return h.number }
func (h *memoryLease) deadline() time.Time         { return h.until }
func (h *memoryLease) renew(context.Context) error { return nil }
func (h *memoryLease) forget()                     {}

func (h *memoryLease) read(context.Context, string) (saw, wrong string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.shelf.value, "", nil
}

func (h *memoryLease) write(ctx context.Context, w write) error {
	w.pause(ctx)
	switch h.dice.below(12) {
	case 0:
		return &failure{outcome: history.Failed, err: errors.New("cut before")}
	case 1:
		return errors.New("cut, and never done")
	case 2:
		_ = h.set(w.id)
		return errors.New("cut, and done")
	case 3:
		h.late.Go(func() {
			timer := time.NewTimer(h.dice.between(0, time.Second))
			<-timer.C
			_ = h.set(w.id)
		})
		return errors.New("cut, and done later")
	}
	return h.set(w.id)
}

func (h *memoryLease) set(id string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.number != h.shelf.token {
		return &failure{outcome: history.Refused, code: "ZF001", err: errors.New("stale, 0123456789abcdef0123456789abcdef")}
	}
	h.effects = append(h.effects, effect{h.resource, id, h.shelf.value})
	h.shelf.value = id
	return nil
}

func (h *memoryLease) release(ctx context.Context) error { return h.giveBack(ctx) }

func (h *memoryLease) giveBack(context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.number == h.shelf.token {
		h.shelf.released = true
	}
	return nil
}
