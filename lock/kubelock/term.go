package kubelock

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/fence/leasing"
)

// term is the time for which a Lock leads. It begins once, and ends once.
type term struct {
	lease  types.NamespacedName
	ctx    context.Context // ends with the term; the cause says why
	cancel context.CancelCauseFunc

	mu       sync.Mutex
	grant    fence.Grant // token 0: it has not begun
	deadline clock.Instant
	timer    *time.Timer
}

func newTerm(lease types.NamespacedName) *term {
	t := &term{lease: lease}
	t.ctx, t.cancel = context.WithCancelCause(context.Background())
	return t
}

// begin begins the term, unless its deadline has passed.
func (t *term) begin(grant fence.Grant, deadline clock.Instant) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	left := deadline.Left()
	switch {
	case t.ctx.Err() != nil:
		return context.Cause(t.ctx)
	case left <= 0:
		return fmt.Errorf("lease %v: its time ran out while it was taken and the fence armed: %w", t.lease, leasing.ErrLost)
	}
	t.grant, t.deadline = grant, deadline
	t.timer = time.AfterFunc(left, t.look)
	return nil
}

// prolong extends the deadline. A term that is over stays over.
func (t *term) prolong(deadline clock.Instant) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expire()
	if t.ctx.Err() == nil {
		t.deadline = deadline
		t.timer.Reset(deadline.Left())
	}
	return context.Cause(t.ctx)
}

// look ends the term if the clock has passed its deadline.
func (t *term) look() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expire()
}

func (t *term) expire() {
	if t.grant.Token > 0 && t.deadline.Passed() {
		t.cancel(t.loss(errNotRenewed))
	}
}

func (t *term) loss(why error) error {
	return fmt.Errorf("lease %v: %w: %w", t.lease, leasing.ErrLost, why)
}

// lose ends the term, even one that has not begun, and returns why it ended: why, or an earlier reason.
func (t *term) lose(why error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cancel(t.loss(why))
	if t.timer != nil {
		t.timer.Stop()
	}
	return context.Cause(t.ctx)
}

// over returns why the term ended; nil: it has not.
func (t *term) over() error {
	t.look()
	return context.Cause(t.ctx)
}

// token is the term's token, also after its end; 0: it has not begun.
func (t *term) token() fence.Token {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.grant.Token
}

func (t *term) current() (fence.Grant, error) {
	if err := t.over(); err != nil {
		return fence.Grant{}, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.grant.Token == 0 {
		return fence.Grant{}, fmt.Errorf("lease %v: %w", t.lease, ErrNotLeading)
	}
	return t.grant, nil
}

// termContext reads the clock on each call: after a pause of the process, the timer may not have fired.
type termContext struct {
	context.Context
	t *term
}

func (c termContext) Err() error {
	c.t.look()
	return c.Context.Err()
}

func (c termContext) Done() <-chan struct{} {
	c.t.look()
	return c.Context.Done()
}
