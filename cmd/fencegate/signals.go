package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/fencegate/fencegate/internal/terminal"
)

// endings are the signals that end a command, without those that this process was started to ignore, as by nohup. That
// can only be determined before the first [signal.Notify].
var endings = slices.DeleteFunc([]os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT}, signal.Ignored)

// handlesSignals annotates commands that end their context at signals themselves, by [untilSignal].
const handlesSignals = "handles signals"

// untilSignal returns a context that ends with ctx, or at the first signal that is to end this process, and the signals.
// An INT that is typed at the terminal stdin is left to a command with which it is shared; nil: there is none. stop must
// be called.
func untilSignal(ctx context.Context, stdin io.Reader, shared *terminal.Shared) (until context.Context, heard <-chan os.Signal, stop func()) {
	until, cancel := context.WithCancel(ctx)
	received, passed := make(chan os.Signal, 2), make(chan os.Signal, 2)
	signal.Notify(received, endings...)
	go func() {
		for s := range received {
			if s == os.Interrupt && shared != nil && shared.Leave(stdin) {
				continue
			}
			cancel()
			select {
			case passed <- s:
			default:
			}
		}
	}()
	return until, passed, func() {
		signal.Stop(received)
		close(received)
		cancel()
	}
}
