package gateway

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/api"
	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/objects/maintenance"
	"github.com/fencegate/fencegate/internal/pgtext"
	"github.com/fencegate/fencegate/lock/continuity"
)

// step is one step of a start.
type step struct {
	what string
	at   string // the address, without a secret
	do   func(context.Context) error
}

// prepare does what the configuration asks for at the start, and retries while PostgreSQL comes up.
func (g *Gateway) prepare(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, g.cfg.StartTimeout)
	defer cancel()
	for _, s := range g.steps() {
		if err := g.patiently(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

func (g *Gateway) steps() (steps []step) {
	if g.s3 != nil {
		steps = append(steps, step{"check the blob store", "the blob store", g.s3.Keeper().Check})
	}
	if len(g.parsed.buckets) > 0 {
		pg := g.parsed.pool.ConnConfig
		_, addr := pgconn.NetworkAddress(pg.Host, pg.Port)
		at := addr + "/" + pg.Database
		// A separate step, so that the log names it: the later steps retry silently at first.
		steps = append(steps, step{"reach PostgreSQL", at, func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, probeTimeout)
			defer cancel()
			return g.pool.Ping(ctx)
		}})
		for name, rule := range g.parsed.buckets {
			steps = append(steps, step{"make the bucket " + name, at, func(ctx context.Context) error { return g.makeBucket(ctx, name, rule) }})
		}
	}
	return steps
}

// makeBucket creates a bucket if it is missing. An existing one keeps its rule: another gateway, or an operator, may
// have changed it since.
func (g *Gateway) makeBucket(ctx context.Context, name string, rule objects.Rule) error {
	created, there, err := g.s3.Catalog().CreateBucketIfAbsent(ctx, name, rule)
	if err == nil && !created && there != rule {
		g.log.Warn("a bucket's rule differs from the configured one and was not changed", "bucket", name, "rule", there.String(), "configured", rule.String(),
			"hint", "PUT /v1/buckets/"+name+" changes it while the bucket is empty")
	}
	return err
}

func (g *Gateway) patiently(ctx context.Context, s step) error {
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		err := s.do(ctx)
		if err == nil || permanent(err) || ctx.Err() != nil {
			return stepError(s, err)
		}
		g.log.Warn("failed to start the gateway; trying again", "step", s.what, "at", s.at, "error", pgtext.Of(err), "next_try_in", pause)
		select {
		case <-ctx.Done():
			return stepError(s, err)
		case <-g.finished:
			return stepError(s, errors.Join(err, g.err))
		case <-time.After(pause):
		}
	}
}

func stepError(s step, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", s.what, err)
}

// permanent reports whether a retry cannot help: the configuration is refused, or the gateway's login lacks a right.
func permanent(err error) bool {
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok && refused.Code == "42501" { // insufficient_privilege
		return true
	}
	_, foreign := errors.AsType[*maintenance.StoreOwnerError](err)
	return foreign || errors.Is(err, fence.ErrInvalid) || errors.Is(err, objects.ErrRuleInUse)
}

// probeTimeout bounds the checks at the start.
const probeTimeout = 3 * time.Second

// probe checks once what the gateway needs, and logs what would make it useless: the checks of /readyz, and what no
// readiness check covers.
func (g *Gateway) probe(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	checks := g.checks()
	found, what := make([]partText, len(checks)), "the gateway serves, but some parts are degraded; see /readyz"
	var hindered atomic.Bool
	var looks sync.WaitGroup
	for i, check := range checks {
		looks.Go(func() {
			if err := check.Run(ctx); err != nil {
				found[i] = partText{check.Part, pgtext.Of(err)}
				if _, degraded := errors.AsType[*api.DegradedError](err); !degraded {
					hindered.Store(true)
				}
			}
		})
	}
	var binding error
	if g.pg != nil {
		looks.Go(func() { binding = g.pg.CheckChannelBinding(ctx) })
	}
	looks.Wait()
	failed := saidOnce(found)
	if hindered.Load() {
		what = "the gateway is not ready; see /readyz"
	}
	if len(failed) > 0 {
		g.log.Warn(what, "why", strings.Join(failed, "; "))
	}
	if binding != nil {
		g.log.Warn("logins through the PostgreSQL port can fail", "why", binding)
	}
}

// partText says what a part of the gateway lacks.
type partText struct{ part, text string }

// saidOnce returns the texts, each with the first part that reports it, without those that another text contains:
// several checks fail for one cause, each with its own error value.
func saidOnce(found []partText) (said []string) {
	for i, f := range found {
		if f.text == "" || slices.ContainsFunc(found[:i], func(o partText) bool { return strings.Contains(o.text, f.text) }) ||
			slices.ContainsFunc(found[i+1:], func(o partText) bool { return len(o.text) > len(f.text) && strings.Contains(o.text, f.text) }) {
			continue
		}
		said = append(said, f.part+": "+f.text)
	}
	return said
}

// watchContinuity logs once that PostgreSQL may have forgotten fences, and once that it is verified again.
func (g *Gateway) watchContinuity(ctx context.Context) error {
	var why string
	return g.servers.watch(ctx, func(err error) {
		switch {
		case continuity.Refused(err) && why != err.Error():
			why = err.Error()
			g.log.Error("no leases are granted", "why", why)
		case err == nil && why != "":
			why = ""
			g.log.Info("PostgreSQL is verified again; leases are granted")
		}
	})
}
