package blob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// watch ends a transfer when the service makes no progress for too long. It pauses while nobody waits for the service.
type watch struct {
	stall time.Duration
	timer *time.Timer
}

func newWatch(stall time.Duration, end context.CancelCauseFunc) *watch {
	return &watch{stall: stall, timer: time.AfterFunc(stall, func() {
		end(fmt.Errorf("the transfer with the S3 service made no progress for %v", stall))
	})}
}

func (w *watch) rest() { w.timer.Stop() }
func (w *watch) wait() { w.timer.Reset(w.stall) }

// source gives the service exactly the announced bytes, and records the reader's own errors.
type source struct {
	ctx   context.Context //nolint:containedctx // of the one call that it belongs to
	mu    sync.Mutex      // held while the reader is read
	r     io.Reader
	left  int64
	err   error
	over  bool
	watch *watch
}

var errOver = errors.New("the transfer is over")

// Read implements [io.Reader].
func (s *source) Read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.over:
		return 0, errOver
	case s.err != nil:
		return 0, s.err
	case s.left == 0:
		return 0, io.EOF
	}
	s.watch.rest() // now the transfer waits for the reader
	defer s.watch.wait()
	n, err := s.r.Read(p[:min(int64(len(p)), s.left)])
	s.left -= int64(n)
	switch {
	case s.ctx.Err() != nil: // the last bytes of an aborted transfer must not arrive
		return 0, s.ctx.Err()
	case err == nil || errors.Is(err, io.EOF) && s.left == 0:
		return n, nil
	case errors.Is(err, io.EOF):
		s.err = fmt.Errorf("%w: %d bytes fewer than announced", ErrSize, s.left)
	default:
		s.err = err
	}
	return n, s.err
}

// shut prevents further reads: the HTTP client may still read after it has returned its answer. It returns the number
// of unread bytes, and the reader's error.
func (s *source) shut() (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	s.watch.rest()
	return s.left, s.err
}

// download reads exactly the requested bytes, or fails.
type download struct {
	body   io.ReadCloser
	left   int64
	ctx    context.Context //nolint:containedctx // a reader lives longer than the call that opened it
	cancel context.CancelCauseFunc
	watch  *watch
	leave  func() // gives up its place among the open reads
}

// Read implements [io.Reader].
func (d *download) Read(p []byte) (int, error) {
	if d.left == 0 {
		return 0, io.EOF
	}
	d.watch.wait()
	n, err := d.body.Read(p[:min(int64(len(p)), d.left)])
	d.watch.rest()
	d.left -= int64(n)
	switch {
	case err == nil || d.left == 0:
		return n, nil
	case d.ctx.Err() != nil:
		return n, context.Cause(d.ctx)
	case errors.Is(err, io.EOF):
		return n, io.ErrUnexpectedEOF
	}
	return n, err
}

// Close implements [io.Closer].
func (d *download) Close() error {
	d.watch.rest()
	err := d.body.Close()
	d.cancel(errOver)
	d.leave()
	return err
}
