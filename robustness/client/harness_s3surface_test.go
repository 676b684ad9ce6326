package client

import (
	"context"
	"testing"
	"time"

	"github.com/fencegate/fencegate/robustness/history"
)

// surface creates a surface whose choices depend on the seed.
func (w *s3World) surface(t *testing.T, name string, seed uint64) surface {
	t.Helper()
	cfg := w.cfg
	cfg.Seed, cfg.Dir = seed, t.TempDir()
	e, err := newEnv(cfg, 0)
	if err != nil {
		t.Fatal(err)
	}
	s, err := makers[name](e)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.close(); e.close() })
	return s
}

func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func acquire(t *testing.T, s surface, resource string) holding {
	t.Helper()
	h, err := s.acquire(bounded(t), ask{id: "test", resource: resource, ttl: stackTTL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.forget)
	return h
}

// to is a write with an optional pause.
func to(id string, pause func(context.Context)) write {
	if pause == nil {
		pause = func(context.Context) {}
	}
	return write{id: id, pause: pause, nap: func() time.Duration { return 0 }, chance: func(int) bool { return false }}
}

func outcomeOf(err error) (history.Outcome, string) {
	f := new(failure)
	switch e, ok := err.(*failure); { //nolint:errorlint // as the engine sees it
	case err == nil:
		return history.Done, ""
	case ok:
		f = e
	default:
		f.outcome = history.Unknown
	}
	return f.outcome, f.code
}
