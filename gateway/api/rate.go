package api

import (
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// RateError reports that a principal exceeds its request rate. Nothing was done.
type RateError struct {
	Principal  string
	RetryAfter time.Duration
}

func (e *RateError) Error() string { return fmt.Sprintf("%s sends too many requests", e.Principal) }

// rates bounds the request rate of each principal. It is safe for concurrent use.
type rates struct {
	each int // requests per second; 0: no limit

	mu sync.Mutex
	of map[string]*rate.Limiter // one per principal that has asked
}

// check returns a [*RateError] if the principal exceeds its rate. One second's requests may come at once.
func (r *rates) check(name string) error {
	if r.each == 0 {
		return nil
	}
	r.mu.Lock()
	if r.of == nil {
		r.of = map[string]*rate.Limiter{}
	}
	own := r.of[name]
	if own == nil {
		own = rate.NewLimiter(rate.Limit(r.each), r.each)
		r.of[name] = own
	}
	r.mu.Unlock()
	asked := own.Reserve()
	if wait := asked.Delay(); wait > 0 {
		asked.Cancel()
		return &RateError{Principal: name, RetryAfter: wait}
	}
	return nil
}
