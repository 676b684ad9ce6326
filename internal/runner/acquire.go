package runner

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/wire"
)

// OnHeld is what to do while another holds the resource.
type OnHeld int

// What to do while another holds the resource.
const (
	Fail OnHeld = iota // an error after the wait
	Skip               // [ErrSkipped] after the wait
	Wait               // wait without limit
)

// ParseOnHeld reads "fail", "skip" or "wait".
func ParseOnHeld(s string) (OnHeld, error) {
	switch s {
	case "fail":
		return Fail, nil
	case "skip":
		return Skip, nil
	case "wait":
		return Wait, nil
	}
	return 0, &fence.InvalidError{Field: "on-held", Reason: fmt.Sprintf("is %q; it must be fail, skip or wait", s)}
}

// ErrSkipped reports that the command was not started because another holds the resource.
var ErrSkipped = errors.New("skipped")

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
		leases, err := ask(ctx, cfg, request)
		if err == nil {
			return leases, nil
		}
		held := isHeld(err)
		if left -= time.Since(asked); cfg.OnHeld != Wait && left <= 0 || !held && !Passes(err) || ctx.Err() != nil {
			return atLast(ctx, cfg, request, err, mayHave)
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

// atLast handles the end of the wait. A gateway whose wait ended because of an unavailable part does not name the part;
// it does if asked again without a wait. A resource that this run itself may hold is not skipped: nobody else does its
// work.
func atLast(ctx context.Context, cfg Config, request client.AcquireRequest, err error, mayHave bool) ([]client.Lease, error) {
	if request.Wait > 0 && isUnavailable(err) && ctx.Err() == nil {
		request.Wait = 0
		leases, again := ask(ctx, cfg, request)
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

// ask makes one request for all resources or none. Several are in the byte order of their names, as in all programs, so
// that no two requests deadlock.
func ask(ctx context.Context, cfg Config, r client.AcquireRequest) ([]client.Lease, error) {
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

func isHeld(err error) bool {
	p, ok := errors.AsType[*client.Problem](err)
	return ok && p.Code == wire.CodeHeld
}

func isUnavailable(err error) bool {
	p, ok := errors.AsType[*client.Problem](err)
	return ok && p.Code == wire.CodeUnavailable
}

// Passes reports whether a failure before the command's start may pass by itself: the gateway, or a service that it
// needs, is unavailable or was too slow for the lease's TTL.
func Passes(err error) bool {
	if lost(err) || errors.Is(err, ErrLate) {
		return true
	}
	if p, ok := errors.AsType[*client.Problem](err); ok {
		switch p.Status {
		case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout, http.StatusTooManyRequests:
			return true
		}
		return false
	}
	if _, silent := errors.AsType[*client.UnreachableError](err); !silent {
		return false
	}
	_, untrusted := errors.AsType[*tls.CertificateVerificationError](err)
	_, plain := errors.AsType[tls.RecordHeaderError](err)
	return !untrusted && !plain && !errors.Is(err, http.ErrSchemeMismatch)
}
