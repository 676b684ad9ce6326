package activity

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"
)

// maxQuiet bounds how many resources have log lines of their own: clients choose the names.
const maxQuiet = 1000

// refusalLog logs refusals: for each resource the first at once, and then one line per pause, with the number of
// refusals suppressed before it.
type refusalLog struct {
	log   *slog.Logger
	pause time.Duration

	mu     sync.Mutex
	quiet  map[string]*quietResource
	closed bool
}

// quietResource is a resource that was logged within the last pause.
type quietResource struct {
	timer *time.Timer
	left  int   // refusals since then
	last  Event // of them
}

func newRefusalLog(log *slog.Logger, pause time.Duration) *refusalLog {
	return &refusalLog{log: log, pause: pause, quiet: map[string]*quietResource{}}
}

func (l *refusalLog) add(e Event) {
	if !l.suppress(e) {
		l.say(e, 0)
	}
}

// suppress counts the refusal, if its resource is quiet for now.
func (l *refusalLog) suppress(e Event) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	resource := cmp.Or(e.Resource, e.Needed)
	if l.quiet[resource] == nil && len(l.quiet) >= maxQuiet {
		resource = "*" // not a name: the resources beyond the limit share a line
	}
	if q := l.quiet[resource]; q != nil {
		q.left, q.last = q.left+1, e
		return true
	}
	if !l.closed {
		l.quiet[resource] = &quietResource{timer: time.AfterFunc(l.pause, func() { l.resume(resource) })}
	}
	return false
}

// resume logs what the past pause suppressed.
func (l *refusalLog) resume(resource string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch q := l.quiet[resource]; {
	case q == nil: // it is closed
	case q.left == 0:
		delete(l.quiet, resource)
	default:
		l.say(q.last, q.left-1)
		q.left = 0
		q.timer.Reset(l.pause)
	}
}

func (l *refusalLog) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for resource, q := range l.quiet {
		q.timer.Stop()
		if q.left > 0 {
			l.say(q.last, q.left-1)
		}
		delete(l.quiet, resource)
	}
}

// say logs one line; suppressed is the number of refusals since the previous line.
func (l *refusalLog) say(e Event, suppressed int) {
	all := []slog.Attr{slog.String("surface", e.Surface), slog.String("code", e.Code)}
	for _, a := range []struct{ name, value string }{
		{"resource", e.Resource},
		{"needed", e.Needed},
		{"login", e.Login},
		{"client", e.Client},
		{"application_name", e.App},
		{"statement", e.Statement},
		{"table", e.Table},
	} {
		if a.value != "" {
			all = append(all, slog.String(a.name, a.value))
		}
	}
	if e.Presented != 0 {
		all = append(all, slog.Int64("presented", int64(e.Presented)))
	}
	if e.Recorded != 0 {
		all = append(all, slog.Int64("recorded", int64(e.Recorded)))
	}
	if suppressed > 0 {
		all = append(all, slog.Int("suppressed_before", suppressed))
	}
	l.log.LogAttrs(context.Background(), slog.LevelInfo, "the fence refused a write", all...)
}
