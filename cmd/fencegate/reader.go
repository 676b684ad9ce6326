package main

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// errUnread reports that the output has no reader any more, as behind `head`. That is no failure.
var errUnread = errors.New("nobody reads the output")

func unread(err error) error {
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, io.ErrClosedPipe) {
		return errUnread
	}
	return err
}

// unreadEvery is the interval of the checks for a reader.
const unreadEvery = 200 * time.Millisecond

// untilUnread returns a context that ends with ctx, or soon after out has lost its reader. Only a write would notice
// that, and none may come for a long time. stop waits for the checks to end.
func untilUnread(ctx context.Context, out io.Writer) (until context.Context, stop func()) {
	file, ok := out.(*os.File)
	if !ok || ctx == nil {
		return ctx, func() {}
	}
	until, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(unreadEvery)
		defer tick.Stop()
		for !readerGone(file) {
			select {
			case <-until.Done():
				return
			case <-tick.C:
			}
		}
		cancel(errUnread)
	}()
	return until, func() {
		cancel(nil)
		<-done
	}
}

// surviveUnread lets a write to standard output without a reader fail. Otherwise SIGPIPE ends the process, and the lease
// that it holds is not released.
func surviveUnread() {
	// An ignored SIGPIPE would be ignored by the commands that this one starts, so it is caught.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
}

// stdoutUnread reports whether standard output has lost its reader. Other connections fail with EPIPE, too.
func stdoutUnread(err error) bool {
	write, ok := errors.AsType[*fs.PathError](err)
	return ok && write.Path == os.Stdout.Name() && errors.Is(write.Err, syscall.EPIPE)
}
