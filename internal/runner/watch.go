package runner

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/fencegate/fencegate/client"
)

const (
	// killMargin is kept between KILL and the end of the lease: signal delivery
	// and the process's last system call take time.
	killMargin = 100 * time.Millisecond
	// maxGrace bounds the time between TERM and KILL.
	maxGrace = 10 * time.Second
	// tick bounds how late a clock that jumped, or a machine that slept, is noticed.
	tick = 250 * time.Millisecond
	// again is how long after the first signal another one means that somebody asks
	// again. A terminal that closes and timeout(1) send theirs twice.
	again = 500 * time.Millisecond
)

var (
	errDeadline = errors.New("it could not be renewed in time")
	errCapped   = errors.New("the gateway lets no lease last longer (serve --max-lease)")
)

// process is a [child], or what stands in for one.
type process interface {
	done() <-chan int // its exit code, once
	signal(s syscall.Signal) error
	groupGone() bool // of one that has ended
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

	asked  time.Time // the first signal
	forced bool      // killed because somebody asked again
	stop   bool      // asked to end the command
	exited bool
	code   int // the command's, once it has exited
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
	next := time.NewTimer(w.untilRenewal())
	defer next.Stop()
	alarm := time.NewTimer(w.due())
	defer alarm.Stop()
	interrupted, done := ctx.Done(), w.child.done()
	for {
		select {
		case w.code = <-done:
			w.exited, done = true, nil
		case <-w.cfg.Signals:
			w.signalled()
		case <-interrupted:
			interrupted, w.stop = nil, true
			if w.send(syscall.SIGTERM, "TERM") {
				w.cfg.Say("stopping: sent TERM to the command")
			}
		case <-next.C:
			go w.renew(renewCtx)
		case r := <-w.renewal:
			w.renewed(r, next)
		case <-ticker.C:
		case <-alarm.C:
		}
		if w.over() {
			return Result{ExitCode: w.code, Lost: w.lost, Ended: w.termed || w.killed}
		}
		w.enforce()
		alarm.Reset(w.due())
	}
}

// over reports whether the command has ended, and with it what it started, as far
// as that is told to end too: it may stop in order.
func (w *watch) over() bool {
	if !w.exited {
		select { // of what was ready at once, the command's own end counts first
		case w.code = <-w.child.done():
			w.exited = true
		default:
			return false
		}
	}
	if w.stop || w.lost != nil && w.cfg.OnLost == Kill {
		return w.killed || w.forced || w.child.groupGone()
	}
	if w.lost == nil && w.deadline.Remaining() <= 0 {
		w.lose(w.timeUp())
		if w.cfg.OnLost == Kill {
			w.cfg.Say("WARNING: the lease on %s (token %d) was over before the end of the command was seen", w.lease.Resource, w.lease.Token)
		}
	}
	return true
}

// signalled kills the command when somebody asks for its end once more.
func (w *watch) signalled() {
	switch {
	case w.asked.IsZero():
		w.asked = time.Now()
	case time.Since(w.asked) >= again && !w.forced:
		w.forced = true
		if w.send(syscall.SIGKILL, "KILL") {
			w.cfg.Say("asked again: sent KILL to the command")
		}
	}
}

// send reports whether the command got the signal. Another user's, such as sudo,
// does not.
func (w *watch) send(s syscall.Signal, name string) bool {
	err := w.child.signal(s)
	if err != nil {
		w.cfg.Say("could not send %s to the command: %v", name, err)
	}
	return err == nil
}

// untilRenewal is how long it takes until a third of the lease is over.
func (w *watch) untilRenewal() time.Duration { return w.deadline.Remaining() - w.lease.TTL*2/3 }

func (w *watch) renew(ctx context.Context) {
	// Short enough that another try is left where a connection was cut without a word.
	ctx, cancel := context.WithTimeout(ctx, max(w.lease.TTL/8, 500*time.Millisecond))
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
		next.Reset(max(w.untilRenewal(), w.retry()))
	case lost(r.err):
		w.lose(r.err)
	default:
		if text := r.err.Error(); text != w.said { // once for each cause: it is tried often
			w.said = text
			w.cfg.Say("could not renew the lease on %s, which ends in %s: %v", w.lease.Resource, w.deadline.Remaining().Round(time.Millisecond), r.err)
		}
		next.Reset(w.retry())
	}
}

// retry is the pause between two tries to renew.
func (w *watch) retry() time.Duration { return max(w.lease.TTL/12, 50*time.Millisecond) }

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

// timeUp is why the deadline is reached.
func (w *watch) timeUp() error {
	if w.deadline.Final() {
		return errCapped
	}
	return errDeadline
}

// enforce ends the child when its time is over: TERM when only the grace is
// left, KILL at the deadline, or at once when the lease is known to be gone.
func (w *watch) enforce() {
	left := w.deadline.Remaining() - killMargin
	gone := w.lost != nil && !errors.Is(w.lost, errDeadline) && !errors.Is(w.lost, errCapped)
	if w.cfg.OnLost == Warn {
		if left <= 0 {
			w.lose(w.timeUp())
		}
		return
	}
	switch {
	case w.killed:
	case left <= 0 || gone:
		w.lose(w.timeUp())
		w.killed = true
		w.send(syscall.SIGKILL, "KILL")
	case left <= w.grace() && !w.termed:
		w.termed = true
		w.lose(w.timeUp())
		if w.send(syscall.SIGTERM, "TERM") {
			w.cfg.Say("the lease on %s ends in %s, %v: sent TERM to the command", w.lease.Resource, w.deadline.Remaining().Round(time.Millisecond), w.lost)
		}
	}
}
