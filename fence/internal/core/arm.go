package core

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencegate/fencegate/fence"
)

// Patience bounds how long arming waits for writers.
type Patience struct {
	Grace time.Duration // for writers under a superseded grant to end by themselves
	Limit time.Duration // for draining
}

// DefaultPatience applies unless an option changes it.
var DefaultPatience = Patience{Grace: 200 * time.Millisecond, Limit: 5 * time.Second}

// LimitWithin is the limit, cut so that the answer arrives before ctx ends.
func (p Patience) LimitWithin(ctx context.Context) time.Duration {
	limit := p.Limit
	if deadline, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(deadline)*9/10)
	}
	return max(limit, 0)
}

// Twice calls first, and calls again if the connection was lost before an answer. If the second answer is lost too,
// or does not settle the first attempt, the outcome is unknown.
func Twice(what string, first, again func() (answered bool, err error)) error {
	answered, err := first()
	if answered {
		return err
	}
	if second, secondErr := again(); second || secondErr != nil {
		answered, err = second, secondErr
	}
	if !answered || !Settles(err) {
		return fmt.Errorf("%s: %w: %w", what, fence.ErrUnknown, err)
	}
	return err
}

// Settles reports whether the answer to a retry also resolves the first attempt, whose answer was lost. Another error
// may concern the retry alone, as when the server has become read-only.
func Settles(err error) bool {
	var undrained *fence.UndrainedError
	return err == nil || errors.Is(err, fence.ErrUnknown) || errors.Is(err, fence.ErrNotRaised) || errors.Is(err, fence.ErrStale) ||
		errors.As(err, &undrained) && undrained.Token != 0
}

// Drained returns the error of a revocation that has raised the fence to token, after its drain ended with err. What
// stopped the drain does not undo the revocation.
func Drained(resource string, token fence.Token, err error) error {
	if err == nil || errors.Is(err, fence.ErrUndrained) || errors.Is(err, fence.ErrNotRaised) || errors.Is(err, fence.ErrUnknown) {
		return err
	}
	return fmt.Errorf("%w: %w", &fence.UndrainedError{Resource: resource, Token: token, Detail: "PostgreSQL did not say that they have ended"}, err)
}

// Raised interprets the answer to SQLRaise; nil: the fence is raised.
func (r Reports) Raised(a fence.Arming, raised bool, recorded fence.Token, err error) (answered bool, _ error) {
	switch {
	case err != nil:
		return r.Ended(err), fmt.Errorf("raise the fence of %q to %d: %w", a.Resource, a.Token, r.Translate(err))
	case !raised:
		return true, &fence.NotRaisedError{Resource: a.Resource, Offered: a.Token, Recorded: recorded}
	}
	return true, nil
}

// Drained interprets the answer to SQLDrain, after the fence was raised.
func (r Reports) Drained(a fence.Arming, ours bool, recorded fence.Token, err error) (answered bool, _ error) {
	switch {
	case err != nil:
		return r.Ended(err), r.Undrained(a, err)
	case !ours: // another acquisition raised it further in between
		return true, &fence.NotRaisedError{Resource: a.Resource, Offered: a.Token, Recorded: recorded}
	}
	return true, nil
}

// Undrained says that the fence is raised, whatever error stopped the drain.
func (r Reports) Undrained(a fence.Arming, err error) error {
	if translated := r.Translate(err); errors.Is(translated, fence.ErrUndrained) || !r.Ended(err) {
		return fmt.Errorf("drain %q for %d: %w", a.Resource, a.Token, translated)
	}
	return &refused{
		facts: &fence.UndrainedError{Resource: a.Resource, Token: a.Token, Detail: err.Error()},
		err:   fmt.Errorf("fence of %q is raised to %d, but draining it failed: %w", a.Resource, a.Token, err),
	}
}

// ValidateRevocation checks the arguments of a revocation before the fence is raised.
func ValidateRevocation(resource, holder string) error {
	return fence.Arming{Resource: resource, Token: 1, Holder: holder}.Validate()
}

// Revoked interprets the answer to SQLRevoke. found is false if the resource has no fence.
func (r Reports) Revoked(resource string, found bool, err error) error {
	switch {
	case err != nil && r.Ended(err):
		return fmt.Errorf("revoke %q: %w", resource, r.Translate(err))
	case err != nil:
		return fmt.Errorf("revoke %q: %w: %w", resource, fence.ErrUnknown, err)
	case !found:
		return fmt.Errorf("revoke %q: %w", resource, fence.ErrNoFence)
	}
	return nil
}

// Ended interprets one answer to SQLEnd or SQLEndOne; nil: the grant has ended. recorded is 0 if the resource has no
// fence.
func Ended(e fence.Ending, ended, busy bool, recorded fence.Token) error {
	switch {
	case ended:
		return nil
	case busy:
		return &fence.NotEndedError{Resource: e.Resource, Token: e.Token}
	case recorded > e.Token:
		return &fence.StaleError{Resource: e.Resource, Presented: e.Token, Recorded: recorded}
	}
	return &fence.NeverIssuedError{Resource: e.Resource, Presented: e.Token, Recorded: recorded}
}
