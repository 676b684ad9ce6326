package runner

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/fencegate/fencegate/internal/client"
)

const (
	// killMargin is kept between KILL and the end of the lease: signal delivery
	// and the process's last system call take time.
	killMargin = 100 * time.Millisecond
	// maxGrace bounds the time between TERM and KILL.
	maxGrace = 10 * time.Second
	// tick bounds how late a clock that jumped, or a machine that slept, is noticed.
	tick = 250 * time.Millisecond
)

var errDeadline = errors.New("it could not be renewed in time")

// process is a [child], or what stands in for one.
type process interface {
	done() <-chan int // its exit code, once
	signal(s syscall.Signal)
	groupGone() bool
}

// watch renews the lease while the child runs and ends the child in time.
type watch struct {
	cfg      Config
	lease    client.Lease
	child    process
	deadline client.Deadline // the last CONFIRMED one; a renewal in flight does not count

	renewal chan renewed
	said    string // the last cause of a failed renewal that was told
	lost    error
	termed  bool
	killed  bool
}

type renewed struct {
	deadline client.Deadline
	err      error
}

// grace is how long before the deadline the child gets TERM.
func (w *watch) grace() time.Duration { return min(w.lease.TTL/4, maxGrace) }

func (w *watch) untilExit(ctx context.Context) Result {
	renewCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	w.renewal = make(chan renewed, 1)
	ticker := time.NewTicker(min(tick, max(w.lease.TTL/20, time.Millisecond)))
	defer ticker.Stop()
	next := time.NewTimer(w.lease.TTL / 3)
	defer next.Stop()
	alarm := time.NewTimer(w.due())
	defer alarm.Stop()
	interrupted, signals := ctx.Done(), 0
	for {
		select {
		case code := <-w.child.done():
			w.endGroup(ticker.C, alarm)
			return Result{ExitCode: code, Lost: w.lost, Ended: w.termed || w.killed}
		case <-w.cfg.Signals:
			if signals++; signals > 1 {
				w.cfg.Say("asked again: sent KILL to the command")
				w.child.signal(syscall.SIGKILL)
			}
		case <-interrupted:
			interrupted = nil
			w.cfg.Say("stopping: sent TERM to the command")
			w.child.signal(syscall.SIGTERM)
		case <-next.C:
			go w.renew(renewCtx)
		case r := <-w.renewal:
			w.renewed(r, next)
		case <-ticker.C:
		case <-alarm.C:
		}
		w.enforce()
		alarm.Reset(w.due())
	}
}

// endGroup ends what an ended command has left of its process group, where the
// lease is lost: it may stop in order until the deadline.
func (w *watch) endGroup(tick <-chan time.Time, alarm *time.Timer) {
	if w.lost == nil || w.cfg.OnLost == Warn {
		return
	}
	for !w.child.groupGone() {
		if w.killed || w.deadline.Remaining() <= killMargin {
			w.child.signal(syscall.SIGKILL)
			return
		}
		select {
		case <-tick:
		case <-alarm.C:
		}
		w.enforce()
		alarm.Reset(w.due())
	}
}

func (w *watch) renew(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, max(w.lease.TTL/3, time.Second))
	defer cancel()
	deadline, err := w.cfg.Client.Renew(ctx, w.lease.Handle, w.lease.TTL)
	w.renewal <- renewed{deadline, err}
}

func (w *watch) renewed(r renewed, next *time.Timer) {
	switch {
	case w.lost != nil:
		// Too late: the child was told to end, or the storage may have seen a newer token.
	case r.err == nil:
		w.deadline, w.said = r.deadline, ""
		next.Reset(w.lease.TTL / 3)
	case lost(r.err):
		w.lose(r.err)
	default:
		if text := r.err.Error(); text != w.said { // once for each cause: it is tried often
			w.said = text
			w.cfg.Say("could not renew the lease on %s, which ends in %s: %v", w.lease.Resource, w.deadline.Remaining().Round(time.Millisecond), r.err)
		}
		next.Reset(max(w.lease.TTL/12, 50*time.Millisecond))
	}
}

// lose notes the loss once.
func (w *watch) lose(cause error) {
	if w.lost != nil {
		return
	}
	w.lost = cause
	if w.cfg.OnLost == Warn {
		w.cfg.Say("WARNING: the lease on %s (token %d) is lost: %v; the storage refuses further writes of the command", w.lease.Resource, w.lease.Token, cause)
	}
}

// due is how long it takes until enforce has something to do, unless a clock
// jumps: then the next tick finds out.
func (w *watch) due() time.Duration {
	left := w.deadline.Remaining() - killMargin
	switch {
	case w.killed, w.cfg.OnLost == Warn && w.lost != nil:
		return w.lease.TTL // nothing is left to do
	case w.cfg.OnLost == Warn, w.termed:
		return left
	}
	return left - w.grace()
}

// enforce ends the child when its time is over: TERM when only the grace is
// left, KILL at the deadline, or at once when the lease is known to be gone.
func (w *watch) enforce() {
	left := w.deadline.Remaining() - killMargin
	gone := w.lost != nil && !errors.Is(w.lost, errDeadline)
	if w.cfg.OnLost == Warn {
		if left <= 0 {
			w.lose(errDeadline)
		}
		return
	}
	switch {
	case w.killed:
	case left <= 0 || gone:
		w.lose(errDeadline)
		w.killed = true
		w.child.signal(syscall.SIGKILL)
	case left <= w.grace() && !w.termed:
		w.termed = true
		w.lose(errDeadline)
		w.cfg.Say("the lease on %s could not be renewed and ends in %s: sent TERM to the command", w.lease.Resource, w.deadline.Remaining().Round(time.Millisecond))
		w.child.signal(syscall.SIGTERM)
	}
}
