package main

import (
	"context"
	"errors"
	"io"
	"os"
	"syscall"
	"time"
)

// errUnread: nobody reads the output any more, as behind `head`. That is no failure.
var errUnread = errors.New("nobody reads the output")

func unread(err error) error {
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, io.ErrClosedPipe) {
		return errUnread
	}
	return err
}

// unreadEvery is how soon it is noticed that nobody reads.
const unreadEvery = 200 * time.Millisecond

// untilUnread ends with ctx, or soon after the reader of out has gone: nothing may be written
// for long, and only a write would find that out. stop waits for the looks to end.
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
