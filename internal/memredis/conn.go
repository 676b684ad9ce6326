package memredis

import (
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// pipe connects a client with a server. Unlike those of net.Pipe, writes do not wait for a reader: a server that
// answers a pipeline, and a client that still writes it, would wait for each other.
func pipe(requests, replies *Way) (client, server *end) {
	up, down := &half{way: requests, news: make(chan struct{})}, &half{way: replies, news: make(chan struct{})}
	return &end{in: down, out: up}, &end{in: up, out: down}
}

// end is one end of a connection.
type end struct{ in, out *half }

func (e *end) Read(b []byte) (int, error)        { return e.in.read(b) }
func (e *end) Write(b []byte) (int, error)       { return e.out.write(b) }
func (e *end) SetReadDeadline(t time.Time) error { return e.in.setDeadline(t) }
func (e *end) SetWriteDeadline(time.Time) error  { return nil } // writes do not wait
func (e *end) SetDeadline(t time.Time) error     { return e.in.setDeadline(t) }
func (e *end) LocalAddr() net.Addr               { return addr{} }
func (e *end) RemoteAddr() net.Addr              { return addr{} }
func (e *end) Close() error {
	e.in.end(io.ErrClosedPipe)
	e.out.end(io.EOF)
	return nil
}

type addr struct{}

func (addr) Network() string { return "memory" }
func (addr) String() string  { return "memory" }

// half is one direction of a connection.
type half struct {
	way *Way

	mu       sync.Mutex
	sent     []message
	over     error         // after what was sent; io.ErrClosedPipe: at once
	deadline time.Time     // of the reader
	news     chan struct{} // closed at each change
}

type message struct {
	arrives time.Time
	bytes   []byte
}

func (h *half) changedLocked() {
	close(h.news)
	h.news = make(chan struct{})
}

func (h *half) end(why error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over == nil || why == io.ErrClosedPipe { //nolint:errorlint // never wrapped
		h.over = why
		h.changedLocked()
	}
}

func (h *half) setDeadline(t time.Time) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.deadline = t
	h.changedLocked()
	return nil
}

func (h *half) write(b []byte) (int, error) {
	at, lost := h.way.enter()
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.over != nil:
		return 0, io.ErrClosedPipe
	case lost:
		h.over = io.EOF
	default:
		if last := len(h.sent) - 1; last >= 0 && h.sent[last].arrives.After(at) {
			at = h.sent[last].arrives
		}
		h.sent = append(h.sent, message{at, append([]byte(nil), b...)})
	}
	h.changedLocked()
	return len(b), nil
}

func (h *half) read(b []byte) (int, error) {
	for {
		gate := h.way.gate()
		n, err, news, until := h.take(b, gate != nil)
		if news == nil {
			return n, err
		}
		wait(news, gate, until)
	}
}

// wait waits for news, for an open gate, or until a time if there is one.
func wait(news, gate <-chan struct{}, until time.Time) {
	var due <-chan time.Time
	if !until.IsZero() {
		timer := time.NewTimer(time.Until(until))
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-news:
	case <-due:
	case <-gate:
	}
}

// take reads what has arrived. Without anything, it returns what to wait for: news, or a time.
func (h *half) take(b []byte, held bool) (n int, err error, news chan struct{}, until time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	switch {
	case h.over == io.ErrClosedPipe: //nolint:errorlint // never wrapped
		return 0, h.over, nil, until
	case len(b) == 0:
		return 0, nil, nil, until
	case len(h.sent) > 0 && !held && !h.sent[0].arrives.After(now):
		n = copy(b, h.sent[0].bytes)
		if h.sent[0].bytes = h.sent[0].bytes[n:]; len(h.sent[0].bytes) == 0 {
			h.sent = h.sent[1:]
		}
		return n, nil, nil, until
	case len(h.sent) == 0 && h.over != nil:
		return 0, h.over, nil, until
	case !h.deadline.IsZero() && !h.deadline.After(now):
		return 0, os.ErrDeadlineExceeded, nil, until
	}
	until = h.deadline
	if len(h.sent) > 0 && !held && (until.IsZero() || h.sent[0].arrives.Before(until)) {
		until = h.sent[0].arrives
	}
	return 0, nil, h.news, until
}
