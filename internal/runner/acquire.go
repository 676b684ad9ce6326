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
	"github.com/fencegate/fencegate/client/wire"
	"github.com/fencegate/fencegate/fence"
)

// OnHeld says what happens while another holds the resource.
type OnHeld int

// What to do while another holds the resource.
const (
	Fail OnHeld = iota // an error, once the wait is over
	Skip               // [ErrSkipped], once the wait is over
	Wait               // wait for as long as it takes
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

// ErrSkipped says that the command was not started because another holds the resource.
var ErrSkipped = errors.New("skipped")

const (
	// longestAsk is how long one request waits at most: gateways refuse longer waits.
	longestAsk = 5 * time.Minute
	// firstPause and longestPause bound the time between two tries where the gateway
	// is away; each pause is twice the one before.
	firstPause   = 250 * time.Millisecond
	longestPause = 5 * time.Second
)

// acquire asks until the wait is over, also over a gateway that is away. Where an answer
// was lost, the gateway may have given leases that nobody knows: they end by themselves, and
// what comes next waits for them as for another's. The first request does not wait, so that
// people learn at once what is waited for.
func acquire(ctx context.Context, cfg Config) ([]client.Lease, error) {
	began, pause, said := time.Now(), firstPause, ""
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
			return atLast(ctx, cfg, request, err)
		}
		if text := err.Error(); text != said { // once for each cause
			said = text
			cfg.Say("waiting: %v", err)
		}
		if first && held {
			continue // into the queue
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

// atLast is what follows once the wait is over. A gateway whose wait ran out over what is away does
// not say what was; asked without a wait, it does.
func atLast(ctx context.Context, cfg Config, request client.AcquireRequest, err error) ([]client.Lease, error) {
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
	if isHeld(err) && cfg.OnHeld == Skip {
		err = fmt.Errorf("%w: %w", ErrSkipped, err)
	}
	return nil, err
}

// ask makes one request, for all or none. Several are in the order of their names' bytes, as
// everybody takes them, so that no two wait for each other.
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

// Passes reports whether what failed before the command was started can work again by
// itself: the gateway, or what it needs, is away or was too slow for the lease's TTL.
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
