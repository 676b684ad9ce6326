package gateway

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/s3"
	"github.com/fencegate/fencegate/gateway/witness"
)

// prepare does what the configuration asks at the start, trying again while
// PostgreSQL or Redis come up.
func (g *Gateway) prepare(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, g.cfg.StartTimeout)
	defer cancel()
	if g.cfg.InitNodes && g.admit != nil {
		if err := g.patiently(ctx, "admit the Redis nodes", g.admit); err != nil {
			return err
		}
	}
	if g.s3 != nil {
		if err := g.patiently(ctx, "see whether the blob store works", g.s3.CheckStore); err != nil {
			return err
		}
	}
	for name, rule := range g.parsed.buckets {
		ensure := func(ctx context.Context) error { return g.makeBucket(ctx, name, rule) }
		if err := g.patiently(ctx, "make the bucket "+name, ensure); err != nil {
			return err
		}
	}
	return nil
}

// makeBucket makes a bucket where it is missing. One that is there keeps its
// rule: another gateway, or an operator, may have changed it since.
func (g *Gateway) makeBucket(ctx context.Context, name string, rule s3.Rule) error {
	created, there, err := g.s3.CreateBucketIfAbsent(ctx, name, rule)
	if err == nil && !created && there != rule {
		g.log.Warn("a bucket keeps the rule that it has, which is not the configured one", "bucket", name, "rule", there.String(), "configured", rule.String(),
			"hint", "PUT /v1/buckets/"+name+" changes it while the bucket is empty")
	}
	return err
}

func (g *Gateway) patiently(ctx context.Context, what string, do func(context.Context) error) error {
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		err := do(ctx)
		_, foreign := errors.AsType[*s3.StoreOwnerError](err)
		if err == nil || foreign || errors.Is(err, fence.ErrInvalid) || errors.Is(err, s3.ErrRuleInUse) {
			return err
		}
		g.log.Warn("the gateway can't start yet", "step", what, "error", err)
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, err)
		case <-g.finished:
			return fmt.Errorf("%s: %w", what, errors.Join(err, g.err))
		case <-time.After(pause):
		}
	}
}

// probeTimeout bounds the looks at the start.
const probeTimeout = 3 * time.Second

// probe looks once at what the gateway needs, and says in the log what would
// make it useless: as /readyz does, and what no readiness check can see.
func (g *Gateway) probe(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	checks := g.checks()
	failed := make([]string, len(checks))
	var looks sync.WaitGroup
	for i, check := range checks {
		looks.Go(func() {
			if err := check.Run(ctx); err != nil {
				failed[i] = check.Part + ": " + err.Error()
			}
		})
	}
	var binding error
	if g.pg != nil {
		looks.Go(func() { binding = g.pg.CheckChannelBinding(ctx) })
	}
	looks.Wait()
	failed = slices.DeleteFunc(failed, func(s string) bool { return s == "" })
	if len(failed) > 0 {
		g.log.Warn("the gateway is not ready; /readyz tells when it is", "why", strings.Join(failed, "; "))
	}
	if binding != nil {
		g.log.Warn("logins through the PostgreSQL port can fail", "why", binding)
	}
}

// watchContinuity says in the log, once, that PostgreSQL may have forgotten
// fences, and that it is trusted again.
func (g *Gateway) watchContinuity(ctx context.Context) error {
	var why string
	return g.remains.watch(ctx, func(err error) {
		_, forgotten := errors.AsType[*witness.ForgottenError](err)
		switch {
		case forgotten && why != err.Error():
			why = err.Error()
			g.log.Error("no leases are granted", "why", why)
		case err == nil && why != "":
			why = ""
			g.log.Info("PostgreSQL is trusted again; leases are granted")
		}
	})
}
