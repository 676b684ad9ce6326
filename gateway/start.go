package gateway

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

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
	for name, rule := range g.parsed.buckets {
		ensure := func(ctx context.Context) error { return g.makeBucket(ctx, name, rule) }
		if err := g.patiently(ctx, "make the bucket "+name, ensure); err != nil {
			return err
		}
	}
	return nil
}

const sqlBucketDepth = `SELECT depth FROM objects.buckets WHERE name = $1`

// makeBucket makes a bucket where it is missing. One that is there keeps its
// rule: another gateway, or an operator, may have changed it since.
func (g *Gateway) makeBucket(ctx context.Context, name string, rule s3.Rule) error {
	var depth int
	err := g.pool.QueryRow(ctx, sqlBucketDepth, name).Scan(&depth)
	if errors.Is(err, pgx.ErrNoRows) {
		_, err = g.s3.EnsureBucket(ctx, name, rule)
		return err
	}
	if err != nil {
		return fmt.Errorf("look for the bucket %q: %w", name, err)
	}
	there := s3.PrefixRule(depth)
	if depth < 0 {
		there = s3.KeyRule()
	}
	if there != rule {
		g.log.Warn("a bucket keeps the rule that it has, which is not the configured one", "bucket", name, "rule", there.String(), "configured", rule.String(),
			"hint", "PUT /v1/buckets/"+name+" changes it while the bucket is empty")
	}
	return nil
}

func (g *Gateway) patiently(ctx context.Context, what string, do func(context.Context) error) error {
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		err := do(ctx)
		if err == nil || errors.Is(err, fence.ErrInvalid) || errors.Is(err, s3.ErrRuleInUse) {
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

// sweepOften deletes bytes that nobody will ask for, until ctx ends.
func (g *Gateway) sweepOften(ctx context.Context) error {
	tick := time.NewTicker(g.cfg.SweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		swept, err := g.s3.Sweep(ctx, s3.Sweep{})
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			g.log.Warn("a sweep of the blobs failed; the next one goes on", "error", err, "condemned", swept.Condemned, "deleted", swept.Deleted)
		case swept != (s3.Swept{}):
			g.log.Info("the blobs were swept", "condemned", swept.Condemned, "deleted", swept.Deleted)
		}
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
