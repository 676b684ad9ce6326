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

// errNoReader reports that the output has no reader any more, as behind `head`. That is no failure.
var errNoReader = errors.New("nobody reads the output")

func outputError(err error) error {
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, io.ErrClosedPipe) {
		return errNoReader
	}
	return err
}

// readerCheckInterval is the interval of the checks for a reader.
const readerCheckInterval = 200 * time.Millisecond

// withReader returns a context that ends with ctx, or soon after out has lost its reader. Only a write would notice
// that, and none may come for a long time. stop waits for the checks to end.
func withReader(ctx context.Context, out io.Writer) (until context.Context, stop func()) {
	file, ok := out.(*os.File)
	if !ok || ctx == nil {
		return ctx, func() {}
	}
	until, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(readerCheckInterval)
		defer tick.Stop()
		for !readerGone(file) {
			select {
			case <-until.Done():
				return
			case <-tick.C:
			}
		}
		cancel(errNoReader)
	}()
	return until, func() {
		cancel(nil)
		<-done
	}
}

// catchSIGPIPE lets a write to standard output without a reader fail. Otherwise SIGPIPE ends the process, and the lease
// that it holds is not released.
func catchSIGPIPE() {
	// An ignored SIGPIPE would be ignored by the commands that this one starts, so it is caught.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
}

// stdoutHasNoReader reports whether standard output has lost its reader. Other connections fail with EPIPE, too.
func stdoutHasNoReader(err error) bool {
	write, ok := errors.AsType[*fs.PathError](err)
	return ok && write.Path == os.Stdout.Name() && errors.Is(write.Err, syscall.EPIPE)
}

// ignoreNoReader returns nil if the output has no reader.
func ignoreNoReader(err error) error {
	if errors.Is(outputError(err), errNoReader) {
		return nil
	}
	return err
}
