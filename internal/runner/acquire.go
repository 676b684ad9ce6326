package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fencegate/fencegate/client"
)

const (
	// longestAsk is the longest wait of one request: gateways refuse longer ones.
	longestAsk = 5 * time.Minute
	// firstPause and longestPause bound the time between two tries while the gateway is unavailable. Each pause is
	// twice the previous one.
	firstPause   = 250 * time.Millisecond
	longestPause = 5 * time.Second
)

// acquire retries until the wait is over, also while the gateway is unavailable. If an answer was lost, the gateway may
// have given leases that the caller does not know. They expire, and later requests wait for them as for another
// holder's. The first request does not wait, so that the reason for the wait is printed at once.
func acquire(ctx context.Context, cfg Config) ([]client.Lease, error) {
	began, pause, said := time.Now(), firstPause, ""
	mayHave := false // an earlier request may have taken the leases
	for first := true; ; first = false {
		left := cfg.Acquire.Wait - time.Since(began)
		if cfg.OnHeld == Wait {
			left = longestAsk
		}
		request := cfg.Acquire
		request.Wait = max(0, min(left, longestAsk))
		if first {
			request.Wait = 0
		}
		asked := time.Now()
		leases, err := requestLeases(ctx, cfg, request)
		if err == nil {
			return leases, nil
		}
		held := isHeld(err)
		if left -= time.Since(asked); cfg.OnHeld != Wait && left <= 0 || !held && !Retryable(err) || ctx.Err() != nil {
			return endWait(ctx, cfg, request, err, mayHave)
		}
		mayHave = mayHave || !held
		if text := err.Error(); text != said { // each cause once
			said = text
			cfg.Say("waiting: %v", err)
		}
		if first && held {
			continue // join the queue
		}
		if held {
			pause = firstPause
		}
		if err := sleep(ctx, min(pause, left)); err != nil {
			return nil, err
		}
		if !held {
			pause = min(2*pause, longestPause)
		}
	}
}

// endWait handles the end of the wait. A gateway whose wait ended because of an unavailable part does not name the part;
// it does if asked again without a wait. A resource that this run itself may hold is not skipped: nobody else does its
// work.
func endWait(ctx context.Context, cfg Config, request client.AcquireRequest, err error, mayHave bool) ([]client.Lease, error) {
	if request.Wait > 0 && isUnavailable(err) && ctx.Err() == nil {
		request.Wait = 0
		leases, again := requestLeases(ctx, cfg, request)
		if again == nil {
			return leases, nil
		}
		if isHeld(again) || isUnavailable(again) {
			err = again
		}
	}
	held, _ := errors.AsType[*client.Problem](err)
	switch {
	case !isHeld(err):
	case mayHave && held.Holder == cfg.Acquire.Holder:
		err = fmt.Errorf("an earlier request of this run may have taken the lease, which then ends at its TTL: %w", err)
	case cfg.OnHeld == Skip:
		err = fmt.Errorf("%w: %w", ErrSkipped, err)
	}
	return nil, err
}

// requestLeases makes one request for all resources or none. Several are in the byte order of their names, as in all programs, so
// that no two requests deadlock.
func requestLeases(ctx context.Context, cfg Config, r client.AcquireRequest) ([]client.Lease, error) {
	if len(cfg.Resources) > 1 {
		return cfg.Client.AcquireAll(ctx, slices.Sorted(slices.Values(cfg.Resources)), r)
	}
	if len(cfg.Resources) == 1 {
		r.Resource = cfg.Resources[0]
	}
	lease, err := cfg.Client.Acquire(ctx, r)
	return []client.Lease{lease}, err
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
