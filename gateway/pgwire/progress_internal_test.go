package pgwire

import (
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"
)

type firstBytes struct {
	noMetrics

	answers atomic.Int64
}

func (f *firstBytes) Answered(time.Duration) { f.answers.Add(1) }

// A fast client's first statement may be passed on before the relay notes that the client received the login's
// ReadyForQuery. That message is not the statement's answer.
func TestTheFirstByteIsThatOfTheFirstStatement(t *testing.T) {
	t.Parallel()
	const query, ready = "Q\x00\x00\x00\x05\x00", "Z\x00\x00\x00\x05I"
	upstream, server := net.Pipe()
	says, heard := make(chan string, 2), make(chan struct{})
	var m firstBytes
	client := &answering{scripted{read: func(b []byte) (int, error) {
		if m, more := <-says; more {
			return copy(b, m), nil
		}
		return 0, io.EOF
	}}, func() {}}
	r := anOpenRelay(t, client, upstream)
	r.counters.Metrics = &m
	r.session.pending = 1
	client.wrote = func() { // the login's ReadyForQuery
		client.wrote = func() {}
		says <- query
		<-heard
	}
	go func() {
		_, _ = io.ReadFull(server, make([]byte, len(query)))
		close(heard) // it gets no answer
		_ = server.Close()
	}()
	go r.clientToServer()
	defer close(says)
	if err := r.pump(newSource(upstream), []byte(ready), new(serverStream)); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	if n := m.answers.Load(); n != 0 {
		t.Errorf("%d answers are reported of a statement that got none", n)
	}
}
