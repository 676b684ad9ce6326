package main

import (
	"fmt"
	"io"
	"sync"
	"time"
)

const (
	maxUnwritten = 256         // messages that wait for their reader; of more, the oldest are dropped
	endPatience  = time.Second // how long the end of the process waits for them to be written
)

// queues annotates commands whose messages wait for their reader in [messages].
const queues = "queues its messages"

// messages is a writer that does not wait for its reader, which may stand still: a stopped pager, a log collector that
// hangs. Each Write is one message. If too many wait, the oldest are dropped, and a line in their place says how many.
// close must be called.
type messages struct {
	mu      sync.Mutex
	more    sync.Cond
	waiting [][]byte
	dropped int
	notice  func(text string) []byte // formats that line
	closed  bool
	written chan struct{} // closed when all is written after close
}

func newMessages(w io.Writer) *messages {
	m := &messages{notice: said, written: make(chan struct{})}
	m.more.L = &m.mu
	go func() {
		defer close(m.written)
		for text, ok := m.next(); ok; text, ok = m.next() {
			_, _ = w.Write(text) // a reader that has gone misses the rest
		}
	}()
	return m
}

// next waits for the next text to write. ok is false after the last one.
func (m *messages) next() (text []byte, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for len(m.waiting) == 0 && !m.closed {
		m.more.Wait()
	}
	switch {
	case len(m.waiting) == 0:
		return nil, false
	case m.dropped > 0:
		text, m.dropped = m.notice(fmt.Sprintf("%d messages were dropped: nobody read them", m.dropped)), 0
	default:
		text, m.waiting = m.waiting[0], m.waiting[1:]
	}
	return text, true
}

func (m *messages) Write(p []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.waiting) == maxUnwritten {
		m.waiting = m.waiting[1:]
		m.dropped++
	}
	m.waiting = append(m.waiting, append([]byte(nil), p...))
	m.more.Signal()
	return len(p), nil
}

// format sets how a line about dropped messages reads.
func (m *messages) format(notice func(text string) []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.notice = notice
}

// said is a message of run.
func said(text string) []byte { return []byte("fencegate run: " + text + "\n") }

// close waits for what is to be written, but not long.
func (m *messages) close() {
	m.mu.Lock()
	m.closed = true
	m.more.Signal()
	m.mu.Unlock()
	patience := time.NewTimer(endPatience)
	defer patience.Stop()
	select {
	case <-m.written:
	case <-patience.C:
	}
}
