package memredis

import (
	"io"
	"net"
	"os"
	"slices"
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
	way   *Way
	carry func(*Message) // nil: messages need nobody to carry them

	mu       sync.Mutex
	sent     []*Message
	over     error         // after what was sent; io.ErrClosedPipe: at once
	deadline time.Time     // of the reader
	news     chan struct{} // closed at each change
	ended    chan struct{} // finish has let what was sent through, and waits for the reader's end; nil: it does not
}

// Message is one write to a connection.
type Message struct {
	half    *half
	arrives time.Time
	carried bool // it waits for Deliver
	bytes   []byte
}

// Bytes is what was written. The caller must not change it.
func (m *Message) Bytes() []byte { return m.bytes }

// Deliver lets a message arrive now, once those before it on its connection have.
func (m *Message) Deliver() {
	m.half.mu.Lock()
	defer m.half.mu.Unlock()
	m.carried = false
	m.half.changedLocked()
}

// Lose loses a message and all later ones of its direction, and ends the connection there.
func (m *Message) Lose() {
	h := m.half
	h.mu.Lock()
	defer h.mu.Unlock()
	if at := slices.Index(h.sent, m); at >= 0 {
		h.sent = h.sent[:at]
	}
	if h.over == nil {
		h.over = io.EOF
	}
	h.changedLocked()
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
		if h.ended != nil {
			close(h.ended)
			h.ended = nil
		}
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
		m := &Message{half: h, arrives: at, bytes: append([]byte(nil), b...)}
		h.sent = append(h.sent, m)
		if h.carry != nil {
			m.carried = true
			h.carry(m)
			return len(b), nil // nobody has news of it before it is delivered
		}
	}
	h.changedLocked()
	return len(b), nil
}

func (h *half) read(b []byte) (int, error) {
	for {
		gate := h.way.gate()
		n, news, until, err := h.take(b, gate != nil)
		if news == nil {
			return n, err
		}
		wait(news, gate, until)
	}
}

// finish lets what was sent on a connection that has ended through to its server, and waits until that has
// answered it, and closed its end.
func (h *half) finish() {
	h.mu.Lock()
	if h.over != io.EOF || h.ended != nil || h.carry != nil { //nolint:errorlint // never wrapped
		h.mu.Unlock()
		return
	}
	ended := make(chan struct{})
	h.ended = ended
	h.changedLocked()
	h.mu.Unlock()
	<-ended
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
func (h *half) take(b []byte, held bool) (n int, news chan struct{}, until time.Time, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	held = held && h.ended == nil
	switch {
	case h.over == io.ErrClosedPipe: //nolint:errorlint // never wrapped
		return 0, nil, until, h.over
	case len(b) == 0:
		return 0, nil, until, nil
	case len(h.sent) > 0 && !held && !h.sent[0].carried && !h.sent[0].arrives.After(now):
		n = copy(b, h.sent[0].bytes)
		if h.sent[0].bytes = h.sent[0].bytes[n:]; len(h.sent[0].bytes) == 0 {
			h.sent = h.sent[1:]
		}
		return n, nil, until, nil
	case len(h.sent) == 0 && h.over != nil:
		return 0, nil, until, h.over
	case !h.deadline.IsZero() && !h.deadline.After(now):
		return 0, nil, until, os.ErrDeadlineExceeded
	}
	until = h.deadline
	if len(h.sent) > 0 && !held && !h.sent[0].carried && (until.IsZero() || h.sent[0].arrives.Before(until)) {
		until = h.sent[0].arrives
	}
	return 0, h.news, until, nil
}
