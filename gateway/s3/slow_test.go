//go:build unix

package s3_test

import (
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/fencegate/fencegate/internal/testenv"
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
	testenv.Eventually(t, "an upload that takes longer than that", func() error { // on a busy machine a wait may be too long
		patience := &gradual{left: 12, wait: 300 * time.Millisecond, piece: 32 << 10}
		done := w.async(raw{creds: w.issue("orders/1001", 5), method: "PUT", path: "/orders/" + invoice, body: patience, size: 12 * 32 << 10})
		if a := <-done; a.status != 200 {
			return fmt.Errorf("got %+v", a)
		}
		return nil
	})
	if got := get(t, w.root(), bucket, invoice); len(got) != 12*32<<10 {
		t.Errorf("%d bytes are stored", len(got))
	}
}

// The rest of a refused body is heard for two seconds, so that the client reads the answer, and no longer.
func TestARefusedBodyThatNeverEndsIsCutOff(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.bucket()
	for _, head := range []string{"Content-Length: 5000000000", "Transfer-Encoding: chunked"} {
		sent, heard := w.endless(head)
		for tries := 0; tries < 4 && heard < sent/2; tries++ { // on a busy machine it may hear little in two seconds
			sent, heard = w.endless(head)
		}
		if heard < sent/2 { // the others were on their way
			t.Errorf("%s: %d bytes were sent, %d are counted", head, sent, heard)
		}
	}
}

// endless sends a body until the server cuts it off, and returns how many bytes were sent, and how many the server heard.
func (w *world) endless(head string) (sent, heard int64) {
	w.t.Helper()
	conn, err := net.Dial("tcp", w.addr)
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	before := w.srv.Stats().BytesIn
	piece := append([]byte("10000\r\n"), make([]byte, 64<<10)...)
	_, err = io.WriteString(conn, "PUT /orders/"+invoice+" HTTP/1.1\r\nHost: x\r\n"+head+"\r\n\r\n")
	for err == nil {
		var n int
		n, err = conn.Write(append(piece, "\r\n"...))
		sent += int64(n)
	}
	return sent, w.srv.Stats().BytesIn - before
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
