package gateway

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/activity"
	"github.com/fencegate/fencegate/gateway/api"
	"github.com/fencegate/fencegate/gateway/metrics"
	"github.com/fencegate/fencegate/gateway/objects/maintenance"
	"github.com/fencegate/fencegate/wire"
)

// scanEvery is how often a sweep tries to scan the whole store.
const scanEvery = 24 * time.Hour

// Pauses between attempts to record the sweep's grace: the first, and the longest.
const (
	declareAgain  = 2 * time.Second
	declareSeldom = time.Minute
)

// retryWindow is how long after the end of its credentials a request may still arrive: the time of an upload plus the
// clock skew that a signature allows.
func (c Config) retryWindow() time.Duration {
	const skew = 15 * time.Minute
	return c.S3.WithDefaults().UploadTimeout + skew
}

// credentialsLast is the longest life of a lease's S3 credentials.
func (c Config) credentialsLast() time.Duration {
	if c.API.MaxLease <= 0 {
		return api.MaxCredentials
	}
	return min(c.API.MaxLease, api.MaxCredentials)
}

// validateRecords refuses a SweepRecords shorter than the time in which a request may be repeated.
func (c Config) validateRecords() error {
	least := c.credentialsLast() + c.retryWindow()
	if age := cmp.Or(c.SweepRecords, maintenance.DefaultRecordAge); age < least {
		return &fence.InvalidError{Field: "SweepRecords", Reason: fmt.Sprintf(
			"is %v; a lease's credentials last for %v, and a request may be repeated for %v after that: at least %v is needed",
			age, least-c.retryWindow(), c.retryWindow(), least)}
	}
	return nil
}

// sweeper deletes bytes that are no longer needed.
type sweeper struct {
	cfg     Config
	keeper  *maintenance.Keeper
	metrics *metrics.S3
	tell    func(activity.Event)
}

// run sweeps until ctx ends.
func (s sweeper) run(ctx context.Context) error {
	tick := time.NewTicker(s.cfg.SweepEvery)
	defer tick.Stop()
	// Before the first sweep: until then, others must not take bytes that this setting keeps.
	declare, pause := time.After(0), declareAgain
	var scanned time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-declare: // why PostgreSQL does not answer is reported by the start, /readyz and the first sweep
			if declare = nil; s.keeper.DeclareGrace(ctx, s.cfg.SweepGrace) != nil {
				declare, pause = time.After(pause), min(2*pause, declareSeldom)
			}
			continue
		case <-tick.C:
		}
		scan := time.Since(scanned) >= scanEvery
		swept, err := s.keeper.Sweep(ctx, maintenance.Sweep{Store: scan, SupersededAge: s.cfg.SweepGrace, RecordAge: s.cfg.SweepRecords, Rate: s.cfg.SweepRate})
		s.metrics.Swept(swept, err)
		if scan { // also if it failed: the next sweeps do not pay for it again
			scanned = time.Now()
		}
		counts := []any{"adopted", swept.Adopted, "pruned", swept.Pruned, "forgotten", swept.Forgotten, "condemned", swept.Condemned, "deleted", swept.Deleted}
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			s.cfg.Logger.Warn("a sweep of the blobs failed; the next one continues", append(counts, "error", err)...)
		case swept != (maintenance.Swept{}):
			s.cfg.Logger.Info("the blobs were swept", counts...)
			s.tell(activity.Event{Kind: wire.EventSwept, Surface: wire.SurfaceS3, Deleted: swept.Deleted})
		}
		if swept.Listed > 0 {
			s.cfg.Logger.Error("the sweep kept blobs that versions list but that have no row in PostgreSQL", "blobs", swept.Listed, "hint", "fencegate objects verify")
		}
	}
}
