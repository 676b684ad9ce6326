package lock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fencegate/fencegate/fence/leasing"
)

// Prefix is a [Config.KeyPrefix] that is known. "" is [DefaultKeyPrefix].
func Prefix(prefix string) func(context.Context) (string, error) {
	if prefix == "" {
		prefix = DefaultKeyPrefix
	}
	return func(context.Context) (string, error) { return prefix, nil }
}

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
func (l *Locker) name() {
	l.naming.known, l.naming.failed = make(chan struct{}), make(chan struct{})
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if prefix, err := l.cfg.KeyPrefix(ended); err == nil {
		l.named(prefix)
		return
	}
	l.background.Go(l.learn)
}

func (l *Locker) named(prefix string) {
	*l.keys = newKeys(prefix)
	close(l.naming.known)
}

// learn asks for the prefix until it is known, or the Locker is closed.
func (l *Locker) learn() {
	var said time.Time
	failed := sync.OnceFunc(func() { close(l.naming.failed) })
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		ctx, cancel := context.WithTimeout(l.ctx, prefixTimeout)
		prefix, err := l.cfg.KeyPrefix(ctx)
		cancel()
		if err == nil {
			l.cfg.Logger.Info("the prefix of the Redis keys is known", "prefix", prefix)
			l.named(prefix)
			return
		}
		l.naming.mu.Lock()
		l.naming.err = err
		l.naming.mu.Unlock()
		failed()
		if time.Since(said) >= remindEvery && l.ctx.Err() == nil {
			said = time.Now()
			l.cfg.Logger.Warn("no leases are granted yet: the prefix of the Redis keys is not known", "error", err)
		}
		if pause(l.ctx, wait) != nil {
			return
		}
	}
}

// keyed returns once the prefix is known. It fails once a question for it has failed; the next one may be answered.
func (l *Locker) keyed(ctx context.Context) error {
	select {
	case <-l.naming.known:
		return nil
	default:
	}
	select {
	case <-l.naming.known:
		return nil
	case <-l.naming.failed:
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-l.ctx.Done():
		return ErrClosed
	}
	select {
	case <-l.naming.known:
		return nil
	default:
	}
	l.naming.mu.Lock()
	defer l.naming.mu.Unlock()
	return &prefixError{l.naming.err}
}

// isUnkeyed reports whether an error says that the prefix is not known yet.
func isUnkeyed(err error) bool {
	_, ok := errors.AsType[*prefixError](err)
	return ok
}
