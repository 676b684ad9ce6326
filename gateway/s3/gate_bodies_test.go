//go:build unix

package s3_test

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/fencegate/fencegate/internal/testenv"
)

// The unread rest of a chunked upload is never parsed as a request, wherever reading ended. What follows its end is.
func TestTheRestOfAChunkedBodyIsNoRequest(t *testing.T) {
	t.Parallel()
	w := setup(t, lingers)
	bucket := w.bucket()
	w.arm("orders/1001", 5)
	const second = "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
	piece := func(s string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(s), s) }
	good := w.putRaw(5, "", "")
	good.payload, good.header = "STREAMING-UNSIGNED-PAYLOAD-TRAILER", map[string]string{"X-Amz-Decoded-Content-Length": "4"}
	forged, other := good, good
	forged.creds.SecretAccessKey += "x"
	other.path = "/orders/1002/x"
	const whole = "4\r\ndata\r\n0\r\n\r\n"
	for name, c := range map[string]struct {
		r      raw
		body   string
		n      int // number of answers
		status int
	}{
		"whole":                 {good, piece(whole) + "0\r\n\r\n", 1, 200},
		"two":                   {good, piece(whole) + "0\r\n\r\n" + second, 2, 200},
		"two, with a trailer":   {good, piece(whole) + "0\r\nA: b\r\n\r\n" + second, 2, 200},
		"another one inside":    {good, piece(whole+strings.Repeat(" ", 2048)+second) + "0\r\n\r\n", 1, 200},
		"in a chunk of its own": {good, piece(whole) + piece(second) + "0\r\n\r\n", 1, 200},
		"without an end":        {good, piece(whole) + second, 1, 200},
		"forged":                {forged, second, 1, 403},
		"of another resource":   {other, second, 1, 400},
	} {
		req := w.request(c.r)
		var head strings.Builder
		fmt.Fprintf(&head, "%s %s HTTP/1.1\r\nHost: %s\r\nTransfer-Encoding: chunked\r\n", c.r.method, req.URL.RequestURI(), req.URL.Host)
		if err := req.Header.Write(&head); err != nil {
			t.Fatal(err)
		}
		n, status := w.answers(head.String() + "\r\n" + c.body)
		if n != c.n || status != c.status {
			t.Errorf("%s: %d answers, the first %d, want %d, %d", name, n, status, c.n, c.status)
		}
	}
	if got := get(t, w.root(), bucket, invoice); got != "data" {
		t.Errorf("the object holds %q", got)
	}
}

// A client that continues to send learns why it was refused, even if the refusal comes from after the gate.
func TestAStaleClientThatGoesOnSendingLearnsIt(t *testing.T) {
	t.Parallel()
	w := setup(t, lingers)
	w.bucket()
	w.arm("orders/1001", 4)
	w.arm("orders/1001", 5)
	const size = 8 << 20 // more than the socket buffers hold
	r := w.putRaw(4, "", "")
	r.size = size
	forged := r
	forged.creds.SecretAccessKey += "x"
	for code, r := range map[string]raw{"StaleFencingToken": r, "SignatureDoesNotMatch": forged} {
		if status, text := w.wire(w.head(r) + strings.Repeat("x", size)); status < 400 || !strings.Contains(text, code) {
			t.Errorf("got %d %.200s, want %s", status, text, code)
		}
	}
	testenv.Eventually(t, "the connections end", func() bool { return w.srv.Stats().Connections == 0 })
}

// A client without credentials cannot keep a connection by announcing a long body.
func TestNobodyKeepsAConnectionByABodyToCome(t *testing.T) {
	t.Parallel()
	w := setup(t, func(c *config) { c.StallTimeout = 3 * time.Second })
	w.bucket()
	for _, lines := range []string{"Content-Length: 5000000000", "Expect: 100-continue\r\nContent-Length: 5000000000", "Content-Length: 9000"} {
		w.trickle("PUT /orders/"+invoice+" HTTP/1.1\r\nHost: x\r\n"+lines+"\r\n\r\n", 20*time.Second)
	}
}

// A refused body is not heard for ever.
func TestARefusedBodyThatNeverEndsIsCutOff(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.bucket()
	for _, head := range []string{"Content-Length: 5000000000", "Transfer-Encoding: chunked"} {
		conn, err := net.Dial("tcp", w.addr)
		if err != nil {
			t.Fatal(err)
		}
		piece := append([]byte("10000\r\n"), make([]byte, 64<<10)...)
		_, err = io.WriteString(conn, "PUT /orders/"+invoice+" HTTP/1.1\r\nHost: x\r\n"+head+"\r\n\r\n")
		for err == nil { // until it is cut off
			_, err = conn.Write(append(piece, "\r\n"...))
		}
		_ = conn.Close()
	}
}
