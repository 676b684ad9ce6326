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

// secret matches seals and other keys. Errors of the product contain none, and a history must not.
var secret = regexp.MustCompile(`[0-9a-f]{32,}|[A-Za-z0-9_+/=-]{48,}`)

// call makes a call that changes something and records it before and after. fn may add its results to op.
func (w *worker) call(
	ctx context.Context, op history.Op, limit time.Duration, fn func(context.Context, *history.Op) error,
) history.Op {
	op = w.opening(op, limit)
	w.history.Put(op)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := fn(ctx, &op)
	op.End = history.Now()
	w.setOutcome(&op, err)
	w.put(op)
	return op
}

// opening returns op, beginning now.
func (w *worker) opening(op history.Op, limit time.Duration) history.Op {
	if op.ID == "" {
		op.ID = w.id()
	}
	op.Client, op.Round, op.Outcome = w.cfg.Number, w.number, history.Begun
	op.Begin = history.Now()
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
	op.Outcome = history.Unknown
	if op.Action == history.Read {
		op.Outcome = history.Failed
	}
	op.Error = plain(err)
	f, ok := errors.AsType[*failure](err)
	if !ok {
		return
	}
	op.Outcome, op.Code, op.HeldBy = f.outcome, f.code, f.heldBy
	if f.holder != "" {
		op.Error = "held by " + f.holder + ": " + op.Error
		if op.HeldBy == 0 {
			w.mu.Lock()
			op.HeldBy = w.tokens[f.holder]
			w.mu.Unlock()
		}
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
	if op.Action == history.Acquire && op.Outcome == history.Done {
		w.tokens[op.ID] = op.Token
	}
}

// until is a deadline in the history's time; 0: none.
func until(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return history.Now() + int64(time.Until(t))
}
