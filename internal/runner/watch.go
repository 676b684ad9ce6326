package runner

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/fence/clock"
)

const (
	// KillMargin is kept between KILL and the end of the lease:
	// signal delivery and the process's last system call take time.
	KillMargin = 100 * time.Millisecond
	// maxGrace bounds the time between TERM and KILL.
	maxGrace = 10 * time.Second
	// confirmTimeout bounds the last renewal of all leases, if the gateway is unavailable.
	confirmTimeout = 2 * time.Second
	// tick bounds how late a clock jump, or a suspended machine, is noticed.
	tick = 250 * time.Millisecond
	// again is how long after the first signal another one counts as a second request. A terminal that closes and
	// timeout(1) send theirs twice.
	again = 500 * time.Millisecond
)

var (
	errDeadline = errors.New("it could not be renewed in time")
	errCapped   = errors.New("the gateway lets no lease last longer (serve --max-lease)")
)

// watch renews the leases while the child runs and ends the child in time.
type watch struct {
	cfg    Config
	leases []*watchedLease
	child  process

	renewal  chan renewed
	unheard  int       // renewals of the round in flight
	heard    time.Time // when the last round ended
	tryAgain bool      // a renewal of the round has failed
	lost     error
	lostOf   Lease
	graceEnd clock.Instant // end of the grace period, after the gateway has reported a lost lease
	gone     bool          // a lease was reported lost
	termed   bool          // TERM was due, and tried
	killed   bool          // KILL was due, and tried
	ended    bool          // the command could be sent one of them
	shot     bool          // it could be sent KILL
	spent    bool          // the command has ended, and its exit code is about to come

	asked  time.Time // time of the first signal
	forced bool      // killed after a second request
	stop   bool      // the command is to end
	exited bool
	code   int // the command's exit code
}

// watchedLease is one of the leases.
type watchedLease struct {
	lease    client.Lease
	deadline client.Deadline // the last CONFIRMED one; a renewal in flight does not count
	said     string          // the last reported cause of a failed renewal
}

func (h *watchedLease) id() Lease { return Lease{Resource: h.lease.Resource, Token: h.lease.Token} }

type renewed struct {
	of       *watchedLease
	deadline client.Deadline
	err      error
}

func newWatch(cfg Config, leases []client.Lease) *watch {
	w := &watch{cfg: cfg, leases: make([]*watchedLease, len(leases)), renewal: make(chan renewed, len(leases))}
	for i, lease := range leases {
		w.leases[i] = &watchedLease{lease: lease, deadline: lease.Deadline}
	}
	return w
}

// nearest is the lease with the earliest deadline.
func (w *watch) nearest() *watchedLease {
	return slices.MinFunc(w.leases, func(a, b *watchedLease) int { return cmp.Compare(a.deadline.Left(), b.deadline.Left()) })
}

func (w *watch) remaining() time.Duration { return w.nearest().deadline.Left() }

// ttl is the TTL of each lease: they were requested together.
func (w *watch) ttl() time.Duration { return w.leases[0].lease.TTL }

// result returns the outcome.
func (w *watch) result() Result {
	all := make([]Lease, len(w.leases))
	for i, h := range w.leases {
		all[i] = h.id()
	}
	return Result{Leases: all, ExitCode: w.code, Lost: w.lost, LostOf: w.lostOf, Ended: w.ended, Killed: w.shot}
}

// grace is how long before the deadline the child gets TERM.
func (w *watch) grace() time.Duration { return min(w.ttl()/4, maxGrace) }

func (w *watch) untilExit(ctx context.Context) Result {
	renewCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	ticker := time.NewTicker(min(tick, max(w.ttl()/20, time.Millisecond)))
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
			if w.unheard == 0 { // else the tick was first
				w.renewAll(renewCtx)
			}
		case r := <-w.renewal:
			w.renewed(r, next)
		case <-ticker.C:
			if w.overdue() {
				w.renewAll(renewCtx)
			}
		case <-alarm.C:
		}
		if w.over() {
			return w.result()
		}
		w.enforce()
		alarm.Reset(w.due())
	}
}

// over reports whether the command has ended. If its process group
// is to end too, it waits for that: the group may stop in order.
func (w *watch) over() bool {
	if !w.exited {
		select { // if several are ready, the command's own end takes precedence
		case w.code = <-w.child.done():
			w.exited = true
		default:
			return false
		}
	}
	if w.stop || w.lost != nil && w.cfg.OnLost == Kill {
		return w.killed || w.forced || w.child.groupGone()
	}
	if h := w.nearest(); h.deadline.Left() <= 0 {
		w.lose(h, h.timeUp())
	}
	return true
}

// signalled kills the command at a second request.
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

// send reports whether the command received the signal. A command of another user, such as sudo, does not.
func (w *watch) send(s syscall.Signal, name string) bool {
	err := w.child.signal(s)
	if err != nil {
		w.cfg.Say("could not send %s to the command: %v", name, err)
	}
	return err == nil
}

// untilRenewal is the time until a third of the lease is over.
func (w *watch) untilRenewal() time.Duration { return w.remaining() - w.ttl()*2/3 }

// overdue reports whether a renewal is due for which the timer has not fired: timers stand still while the machine
// sleeps, and the deadline does not.
func (w *watch) overdue() bool {
	return w.unheard == 0 && w.lost == nil && w.untilRenewal() < -2*tick && time.Since(w.heard) >= w.retry()
}

// renewAll starts a round. Each answer is handled when it arrives: a lost lease is not delayed by the others.
func (w *watch) renewAll(ctx context.Context) {
	w.unheard, w.tryAgain = len(w.leases), false
	for _, h := range w.leases {
		go func() { w.renewal <- w.ask(ctx, h) }()
	}
}

// requestLeases renews a lease.
func (w *watch) ask(ctx context.Context, h *watchedLease) renewed {
	// Short enough to leave time for another try after a silently cut connection.
	ctx, cancel := context.WithTimeout(ctx, max(h.lease.TTL/8, 500*time.Millisecond))
	defer cancel()
	deadline, err := w.cfg.Client.Renew(ctx, h.lease.Handle, h.lease.TTL)
	return renewed{h, deadline, err}
}

func (w *watch) renewed(r renewed, next *time.Timer) {
	w.unheard--
	w.heard = time.Now()
	switch h := r.of; {
	case w.lost != nil:
		// Too late: the command was sent TERM, or the storage may have seen a newer token.
		return
	case r.err == nil:
		h.deadline, h.said = r.deadline, ""
	case lost(r.err):
		w.gone, w.graceEnd = true, w.cfg.Client.Now().Add(w.grace())
		w.lose(h, r.err)
		return
	default:
		w.tryAgain = true
		if text := r.err.Error(); text != h.said { // each cause once: renewals are frequent
			h.said = text
			w.cfg.Say("could not renew the lease on %s, which ends in %s: %v", h.lease.Resource, h.deadline.Left().Round(time.Millisecond), r.err)
		}
	}
	switch {
	case w.unheard > 0:
	case w.tryAgain:
		next.Reset(w.retry())
	default:
		next.Reset(max(w.untilRenewal(), w.retry()))
	}
}

// confirm renews once more after the command has ended: a lease may have been lost since the last renewal.
func (w *watch) confirm(ctx context.Context) {
	if w.lost != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), confirmTimeout)
	defer cancel()
	answers := together(w.leases, func(h *watchedLease) error { return w.ask(ctx, h).err })
	for i, h := range w.leases {
		if lost(answers[i]) {
			w.lose(h, answers[i])
		}
	}
	if w.lost != nil {
		return
	}
	var unsure []string
	for i, h := range w.leases {
		if answers[i] != nil {
			unsure = append(unsure, h.lease.Resource)
		}
	}
	if len(unsure) > 0 {
		w.cfg.Say("could not confirm that %s was held until the command ended: %v", strings.Join(unsure, ", "), cmp.Or(answers...))
	}
}

// retry is the pause between two tries to renew.
func (w *watch) retry() time.Duration { return max(w.ttl()/12, 50*time.Millisecond) }

// lose records the first loss.
func (w *watch) lose(h *watchedLease, cause error) {
	if w.lost != nil {
		return
	}
	w.lost, w.lostOf = cause, h.id()
	if w.cfg.OnLost == Warn {
		w.cfg.Say("WARNING: the lease on %s (token %d) is lost: %s; %s", h.lease.Resource, h.lease.Token, Why(cause), Refused(cause))
	}
}

// due is the time until enforce has something to do. If a clock jumps, the next tick notices.
func (w *watch) due() time.Duration {
	left := w.untilKill()
	switch {
	case w.killed, w.spent, w.cfg.OnLost == Warn && w.lost != nil:
		return w.ttl() // nothing is left to do
	case w.cfg.OnLost == Warn, w.termed:
		return left
	}
	return left - w.grace()
}

// timeUp is the error for a reached deadline.
func (h *watchedLease) timeUp() error {
	if h.deadline.Final {
		return errCapped
	}
	return errDeadline
}

// untilKill is the time until the command must be gone: until shortly before the deadline, or for the grace period if
// the lease is known to be lost. Its writes until then harm no other holder, because the fence refuses them.
func (w *watch) untilKill() time.Duration {
	left := w.remaining() - KillMargin
	if w.gone {
		left = min(left, w.graceEnd.Left())
	}
	return left
}

// enforce ends the command when its time is over: TERM when only the grace period is left, or at once when the lease is
// known to be lost, and KILL at the end. A command that has ended by itself gets neither.
func (w *watch) enforce() {
	h, left := w.nearest(), w.untilKill()
	if w.cfg.OnLost == Warn {
		if left <= 0 {
			w.lose(h, h.timeUp())
		}
		return
	}
	if w.killed || left > w.grace() && !w.gone || left > 0 && w.termed {
		return
	}
	if w.spent = w.child.ended(); w.spent {
		return
	}
	w.lose(h, h.timeUp())
	if left <= 0 {
		w.killed, w.shot = true, w.send(syscall.SIGKILL, "KILL")
		w.ended = w.ended || w.shot
		if w.shot && w.termed {
			w.cfg.Say("the command, or what it started, went on after TERM: sent KILL")
		}
		return
	}
	w.termed, w.ended = true, w.send(syscall.SIGTERM, "TERM")
	switch {
	case !w.ended:
	case w.gone:
		w.cfg.Say("the lease on %s (token %d) is over, %s: sent TERM to the command; KILL follows in %s", w.lostOf.Resource, w.lostOf.Token, Why(w.lost), left.Round(time.Millisecond))
	default:
		w.cfg.Say("the lease on %s ends in %s, %v: sent TERM to the command", h.lease.Resource, h.deadline.Left().Round(time.Millisecond), w.lost)
	}
}

// together calls ask for all values in parallel, and returns the error of each.
func together[T any](values []T, ask func(T) error) []error {
	errs := make([]error, len(values))
	var all sync.WaitGroup
	for i, v := range values {
		all.Go(func() { errs[i] = ask(v) })
	}
	all.Wait()
	return errs
}
