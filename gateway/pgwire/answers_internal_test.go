package pgwire

import (
	"errors"
	"io"
	"net"
	"testing"
)

// A client may answer before the write of the question returns. What the client has sent by then counts, and what the
// relay notes after the write does not undo it.
func TestWhatAClientSendsAtOnceIsCounted(t *testing.T) {
	t.Parallel()
	const (
		query, sync, ready  = "Q\x00\x00\x00\x05\x00", "S\x00\x00\x00\x04", "Z\x00\x00\x00\x05I"
		copyIn, copyDone    = "G\x00\x00\x00\x07\x00\x00\x00", "c\x00\x00\x00\x04"
		parse, flush, piece = "P\x00\x00\x00\x08\x00\x00\x00\x00", "H\x00\x00\x00\x04", "Q\x00\x00"
	)
	for name, c := range map[string]struct {
		first, answer, atOnce string
		idle                  bool
	}{
		"a statement":                   {query, ready, query, false},
		"one without a Sync":            {query, ready, parse + flush, false},
		"a piece of one":                {query, ready, piece, false},
		"the end of a COPY":             {sync + parse + sync, ready + copyIn, copyDone + sync, false},
		"the end of a COPY that failed": {query, copyIn + ready, copyDone, true},
	} {
		client := new(answering)
		upstream, server := net.Pipe()
		r := anOpenRelay(t, client, upstream)
		s := r.session
		var sent clientStream
		sends := func(b string) {
			sent.scan([]byte(b))
			if !s.startForward(&sent) {
				t.Fatalf("%s: the session has ended", name)
			}
		}
		client.wrote = func() { sends(c.atOnce) }
		sends(c.first)
		go func() {
			_, _ = io.WriteString(server, c.answer)
			_ = server.Close()
		}()
		if err := r.pump(newSource(upstream), nil, new(serverStream)); !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		if s.idle != c.idle {
			t.Errorf("%s: idle is %v, and %d answers are due", name, s.idle, s.pending)
		}
	}
}
