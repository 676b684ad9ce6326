package main

import (
	"fmt"
	"io"
	"sync"
	"time"
)

const (
	maxQueuedMessages   = 256         // messages that wait for their reader; of more, the oldest are dropped
	messageFlushTimeout = time.Second // how long the end of the process waits for them to be written
)

// queuesMessages annotates commands whose messages wait for their reader in [messageQueue].
const queuesMessages = "queues its messages"

// messageQueue is a writer that does not wait for its reader, which may stand still: a stopped pager, a log collector that
// hangs. Each Write is one message. If too many wait, the oldest are dropped, and a line in their place says how many.
// close must be called.
type messageQueue struct {
	mu      sync.Mutex
	more    sync.Cond
	waiting [][]byte
	dropped int
	notice  func(text string) []byte // formats that line
	closed  bool
	written chan struct{} // closed when all is written after close
}

func newMessageQueue(w io.Writer) *messageQueue {
	m := &messageQueue{notice: runMessage, written: make(chan struct{})}
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
func (m *messageQueue) next() (text []byte, ok bool) {
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

func (m *messageQueue) Write(p []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.waiting) == maxQueuedMessages {
		m.waiting = m.waiting[1:]
		m.dropped++
	}
	m.waiting = append(m.waiting, append([]byte(nil), p...))
	m.more.Signal()
	return len(p), nil
}

// format sets how a line about dropped messages reads.
func (m *messageQueue) format(notice func(text string) []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.notice = notice
}

// runMessage is a message of run.
func runMessage(text string) []byte { return []byte("fencegate run: " + text + "\n") }

// close waits for what is to be written, but not long.
func (m *messageQueue) close() {
	m.mu.Lock()
	m.closed = true
	m.more.Signal()
	m.mu.Unlock()
	patience := time.NewTimer(messageFlushTimeout)
	defer patience.Stop()
	select {
	case <-m.written:
	case <-patience.C:
	}
}
