//go:build unix

package s3_test

import (
	"io"
	"testing"
	"time"
)

// A client without credentials cannot keep a connection by announcing a long body.
func TestNobodyKeepsAConnectionByABodyToCome(t *testing.T) {
	t.Parallel()
	w := setup(t, func(c *config) { c.StallTimeout = 3 * time.Second }) // ten times the wait below
	bucket := w.bucket()
	for _, lines := range []string{"Content-Length: 5000000000", "Expect: 100-continue\r\nContent-Length: 5000000000", "Content-Length: 9000"} {
		w.trickle("PUT /orders/"+invoice+" HTTP/1.1\r\nHost: x\r\n"+lines+"\r\n\r\n", 20*time.Second)
	}
	w.arm("orders/1001", 5)
	patience := &gradual{left: 12, wait: 300 * time.Millisecond, piece: 32 << 10}
	done := w.async(raw{creds: w.issue("orders/1001", 5), method: "PUT", path: "/orders/" + invoice, body: patience, size: 12 * 32 << 10})
	if a := <-done; a.status != 200 {
		t.Errorf("an upload that takes longer than that: got %+v", a)
	}
	if got := get(t, w.root(), bucket, invoice); len(got) != 12*32<<10 {
		t.Errorf("%d bytes are stored", len(got))
	}
}

// gradual is a body that is sent in pieces.
type gradual struct {
	left, piece int
	wait        time.Duration
	rest        []byte
}

func (g *gradual) Read(p []byte) (int, error) {
	if len(g.rest) == 0 {
		if g.left == 0 {
			return 0, io.EOF
		}
		<-time.After(g.wait)
		g.left, g.rest = g.left-1, make([]byte, g.piece)
	}
	n := copy(p, g.rest)
	g.rest = g.rest[n:]
	return n, nil
}
