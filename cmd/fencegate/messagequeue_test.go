package main

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// halted is a writer whose reader stands still until resume is closed.
type halted struct {
	read   strings.Builder
	resume chan struct{}
}

func (h *halted) Write(p []byte) (int, error) {
	<-h.resume
	return h.read.Write(p)
}

func TestOfTooManyMessagesTheOldestAreDroppedAndCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		out := &halted{resume: make(chan struct{})}
		m := newMessageQueue(out)
		_, _ = io.WriteString(m, "first\n")
		synctest.Wait() // it is being written
		for i := range maxQueuedMessages + 3 {
			_, _ = fmt.Fprintln(m, i)
		}
		close(out.resume)
		m.close()
		got := strings.Split(out.read.String(), "\n")
		counted, last := strings.Contains(got[1], "3 messages were dropped"), fmt.Sprint(maxQueuedMessages+2)
		if len(got) != maxQueuedMessages+3 || got[0] != "first" || !counted || got[2] != "3" || got[maxQueuedMessages+1] != last {
			t.Errorf("%d lines: %q", len(got), got)
		}
	})
}

func TestTheEndWaitsForItsMessagesButNotLong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		out := &halted{resume: make(chan struct{})}
		m := newMessageQueue(out)
		_, _ = io.WriteString(m, "last\n")
		began := time.Now()
		m.close()
		if took := time.Since(began); took != messageFlushTimeout {
			t.Errorf("it took %v, want %v", took, messageFlushTimeout)
		}
		close(out.resume)
	})
}
