package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/api"
	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/objects/maintenance"
	"github.com/fencegate/fencegate/gateway/primary"
	"github.com/fencegate/fencegate/internal/pgtext"
	"github.com/fencegate/fencegate/lock/continuity"
)

// step is one step of a start.
type step struct {
	what string
	at   string // the address, without a secret
	do   func(context.Context) error
}

// preparation does what the configuration asks for at the start, and retries while PostgreSQL comes up.
type preparation struct {
	steps    []step
	timeout  time.Duration
	finished <-chan struct{} // a part of the gateway ended by itself
	why      func() error    // it ended
	log      *slog.Logger
}

func (p preparation) run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	for _, s := range p.steps {
		if err := p.patiently(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// bucketSteps make the configured buckets.
func bucketSteps(pool *pgxpool.Pool, catalog *objects.Catalog, rules map[string]objects.Rule, log *slog.Logger) []step {
	pg := pool.Config().ConnConfig
	_, addr := pgconn.NetworkAddress(pg.Host, pg.Port)
	at := addr + "/" + pg.Database
	// A separate step, so that the log names it: the later steps retry silently at first.
	steps := []step{{"reach PostgreSQL", at, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, probeTimeout)
		defer cancel()
		return pool.Ping(ctx)
	}}}
	for name, rule := range rules {
		steps = append(steps, step{"make the bucket " + name, at, func(ctx context.Context) error { return makeBucket(ctx, catalog, name, rule, log) }})
	}
	return steps
}

// makeBucket creates a bucket if it is missing. An existing one keeps its rule: another gateway, or an operator, may
// have changed it since.
func makeBucket(ctx context.Context, catalog *objects.Catalog, name string, rule objects.Rule, log *slog.Logger) error {
	created, there, err := catalog.CreateBucketIfAbsent(ctx, name, rule)
	if err == nil && !created && there != rule {
		log.Warn("a bucket's rule differs from the configured one and was not changed", "bucket", name, "rule", there.String(), "configured", rule.String(),
			"hint", "PUT /v1/buckets/"+name+" changes it while the bucket is empty")
	}
	return err
}

func (p preparation) patiently(ctx context.Context, s step) error {
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		err := s.do(ctx)
		if err == nil || permanent(err) || ctx.Err() != nil {
			return stepError(s, err)
		}
		p.log.Warn("failed to start the gateway; trying again", "step", s.what, "at", s.at, "error", pgtext.Of(err), "next_try_in", pause)
		select {
		case <-ctx.Done():
			return stepError(s, err)
		case <-p.finished:
			return stepError(s, errors.Join(err, p.why()))
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
// readiness check covers. binding checks channel binding; nil: there is no PostgreSQL port.
func probe(ctx context.Context, checks []api.Check, binding func(context.Context) error, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
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
	var unbound error
	if binding != nil {
		looks.Go(func() { unbound = binding(ctx) })
	}
	looks.Wait()
	failed := saidOnce(found)
	if hindered.Load() {
		what = "the gateway is not ready; see /readyz"
	}
	if len(failed) > 0 {
		log.Warn(what, "why", strings.Join(failed, "; "))
	}
	if unbound != nil {
		log.Warn("logins through the PostgreSQL port can fail", "why", unbound)
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

// watchPrimary logs once that PostgreSQL may have forgotten fences, and once that it is verified again.
func watchPrimary(ctx context.Context, p *primary.Primary, log *slog.Logger) error {
	var why string
	return p.Watch(ctx, func(err error) {
		switch {
		case continuity.Refused(err) && why != err.Error():
			why = err.Error()
			log.Error("no leases are granted", "why", why)
		case err == nil && why != "":
			why = ""
			log.Info("PostgreSQL is verified again; leases are granted")
		}
	})
}
