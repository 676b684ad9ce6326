package admission

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/lock/internal/node"
)

const (
	// prefixTimeout bounds one question for the prefix.
	prefixTimeout = 3 * time.Second
	// remindEvery is how often the log repeats that it is not known.
	remindEvery = time.Minute
)

// naming is the state of the keys' prefix.
type naming struct {
	known  chan struct{} // closed once the keys have their names
	failed chan struct{} // closed once a question has failed
	mu     sync.Mutex
	err    error // of the last question
}

// prefixError says why the prefix is not known yet. It is a [leasing.ErrUnavailable].
type prefixError struct{ err error }

func (e *prefixError) Error() string {
	return fmt.Sprintf("the prefix of the keys is not known yet: %v", e.err)
}

func (e *prefixError) Is(target error) bool { return target == leasing.ErrUnavailable }

func (e *prefixError) Unwrap() error { return e.err }

// name gives the keys their names if the prefix is known without a question, and otherwise asks in the background.
func (g *Group) name() {
	g.naming.known, g.naming.failed = make(chan struct{}), make(chan struct{})
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if prefix, err := g.cfg.KeyPrefix(ended); err == nil {
		g.named(prefix)
		return
	}
	g.life.InBackground(func(context.Context) { g.learn() })
}

func (g *Group) named(prefix string) {
	*g.Keys = node.NewKeys(prefix)
	close(g.naming.known)
}

// learn asks for the prefix until it is known, or the Locker is closed.
func (g *Group) learn() {
	var said time.Time
	failed := sync.OnceFunc(func() { close(g.naming.failed) })
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		ctx, cancel := context.WithTimeout(g.ctx, prefixTimeout)
		prefix, err := g.cfg.KeyPrefix(ctx)
		cancel()
		if err == nil {
			g.cfg.Logger.Info("the prefix of the Redis keys is known", "prefix", prefix)
			g.named(prefix)
			return
		}
		g.naming.mu.Lock()
		g.naming.err = err
		g.naming.mu.Unlock()
		failed()
		if time.Since(said) >= remindEvery && g.ctx.Err() == nil {
			said = time.Now()
			g.cfg.Logger.Warn("no leases are granted yet: the prefix of the Redis keys is not known", "error", err)
		}
		if Pause(g.ctx, wait) != nil {
			return
		}
	}
}

// AwaitKeys returns once the prefix is known. It fails once a question for it has failed; the next one may be answered.
func (g *Group) AwaitKeys(ctx context.Context) error {
	select {
	case <-g.naming.known:
		return nil
	default:
	}
	select {
	case <-g.naming.known:
		return nil
	case <-g.naming.failed:
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-g.ctx.Done():
		return leasing.ErrClosed
	}
	select {
	case <-g.naming.known:
		return nil
	default:
	}
	g.naming.mu.Lock()
	defer g.naming.mu.Unlock()
	return &prefixError{g.naming.err}
}

// IsUnkeyed reports whether an error says that the prefix is not known yet.
func IsUnkeyed(err error) bool {
	_, ok := errors.AsType[*prefixError](err)
	return ok
}
