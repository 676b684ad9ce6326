package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"sync/atomic"

	"github.com/fencegate/fencegate/internal/terminal"
)

// heeds annotates commands that end their context at signals themselves, by [heed].
const heeds = "heeds"

// heed returns a context that ends with ctx, or at the first signal that is to end this process, and the signals.
// While beside is true (nil: never), a command runs in this process's group. An INT that is typed at the terminal stdin reaches that
// command, too, and is left to it, as a shell leaves it: psql ends a query then, and goes on. stop must be called.
func heed(ctx context.Context, stdin io.Reader, beside *atomic.Bool) (until context.Context, heard <-chan os.Signal, stop func()) {
	until, cancel := context.WithCancel(ctx)
	received, passed := make(chan os.Signal, 2), make(chan os.Signal, 2)
	signal.Notify(received, endings...)
	go func() {
		for s := range received {
			if s == os.Interrupt && beside != nil && beside.Load() && terminal.InForeground(stdin) {
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
