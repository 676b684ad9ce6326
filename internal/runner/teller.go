package runner

import (
	"fmt"
	"time"
)

const (
	maxUntold    = 64              // lines that wait for the reader; more are dropped
	tellPatience = 1 * time.Second // how long the end of a run waits for these lines
)

// teller writes lines without waiting for their reader: a full pipe must not delay the end of the command.
type teller struct {
	lines chan string
	told  chan struct{}
}

func newTeller(say func(format string, args ...any)) *teller {
	t := &teller{lines: make(chan string, maxUntold), told: make(chan struct{})}
	go func() {
		defer close(t.told)
		for line := range t.lines {
			say("%s", line)
		}
	}()
	return t
}

func (t *teller) sayf(format string, args ...any) {
	select {
	case t.lines <- fmt.Sprintf(format, args...):
	default:
	}
}

func (t *teller) close() {
	close(t.lines)
	patience := time.NewTimer(tellPatience)
	defer patience.Stop()
	select {
	case <-t.told:
	case <-patience.C:
	}
}
