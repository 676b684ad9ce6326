package client

import (
	"testing"
	"time"

	"github.com/fencegate/fencegate/robustness/history"
)

func TestARefusalForAHeldResourceNamesTheTokenOfItsLease(t *testing.T) {
	t.Parallel()
	world := newStack(t)
	for _, name := range sqlSurfaces {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := world.cfg
			cfg.Surfaces, cfg.History, cfg.Dir = []string{name}, t.TempDir()+"/history", t.TempDir()
			p, err := start(cfg, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = p.close() }()
			w := &worker{round: &round{process: p, number: 1, stop: make(chan struct{})}, dice: newDice(1, 1)}
			resource := world.resource(t)
			h, err := p.surfaces[name].acquire(bounded(t), ask{id: "holder", resource: resource, ttl: stackTTL, try: true})
			if err != nil {
				t.Fatal(err)
			}
			defer h.forget()
			p.tokens["holder"] = h.token()
			_, err = p.surfaces[name].acquire(bounded(t), ask{id: "other", resource: resource, ttl: time.Second, try: true})
			var op history.Op
			w.setOutcome(&op, err)
			if op.Outcome != history.Refused || op.Code != "held" || op.HeldBy != h.token() {
				t.Errorf("held by %d: %+v", h.token(), op)
			}
		})
	}
}
