package client

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/fencegate/fencegate/robustness/history"
)

// maxError bounds an error's text in a history, in bytes.
const maxError = 300

// secret matches seals, handles, and the secret key and session token of a lease's credentials. Errors of the product
// contain none, and a history must not.
var secret = regexp.MustCompile(`[0-9a-f]{32,}|[A-Za-z0-9_+/=-]{40,}`)

// call makes a call and records it, once for each resource: all have the same outcome. What changes something is also
// recorded before. done completes the records of a call that was done.
func (w *worker) call(
	ctx context.Context, ops []history.Op, limit time.Duration, fn func(context.Context) error, done func(i int, op *history.Op),
) history.Op {
	for i := range ops {
		if ops[i] = w.opening(ops[i], limit); ops[i].Action != history.Read {
			w.history.Put(ops[i])
		}
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := fn(ctx)
	end := history.Now()
	for i := range ops {
		op := &ops[i]
		op.End = end
		if w.setOutcome(op, err); err == nil && done != nil {
			done(i, op)
		}
		w.put(*op)
	}
	return ops[0]
}

// opening returns op, beginning now.
func (w *worker) opening(op history.Op, limit time.Duration) history.Op {
	if op.ID == "" {
		op.ID = w.id()
	}
	op.Client, op.Round, op.Outcome, op.Begin = w.cfg.Number, w.number, history.Begun, history.Now()
	op.Limit = op.Begin + int64(limit)
	return op
}

// id returns a new ID.
func (w *worker) id() string {
	process := fmt.Sprint("c", w.cfg.Number)
	if w.cfg.Life > 1 {
		process += fmt.Sprint("r", w.cfg.Life)
	}
	return fmt.Sprintf("%s.%d-%d", process, w.worker, w.sequence.Add(1))
}

// setOutcome records the outcome that err reports.
func (w *worker) setOutcome(op *history.Op, err error) {
	if err == nil {
		op.Outcome = history.Done
		return
	}
	op.Outcome, op.Error = history.Unknown, plain(err)
	if op.Action == history.Read {
		op.Outcome = history.Failed
	}
	f, ok := errors.AsType[*failure](err)
	if !ok {
		return
	}
	op.Outcome, op.Code = f.outcome, f.code
	if f.holder != "" {
		op.Error = "held by " + f.holder + ": " + op.Error
		w.mu.Lock()
		op.HeldBy = w.tokens[grantee{f.holder, op.Resource}]
		w.mu.Unlock()
	}
}

// plain returns an error's text without secrets.
func plain(err error) string {
	text := secret.ReplaceAllString(err.Error(), "…")
	return text[:min(len(text), maxError)]
}

// put records and counts the end of a call.
func (w *worker) put(op history.Op) {
	w.history.Put(op)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls++
	w.counts[fmt.Sprintf("%s %s %s", op.Surface, op.Action, op.Outcome)]++
}

// happened records a call that began then and has just ended: one within another.
func (w *worker) happened(began int64, op history.Op) {
	op = w.opening(op, longCall)
	op.Begin, op.End, op.Outcome = began, history.Now(), history.Done
	w.put(op)
}

// until is a deadline in the history's time; 0: none.
func until(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return history.Now() + int64(time.Until(t))
}
