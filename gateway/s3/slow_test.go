//go:build unix

package s3_test

import (
	"io"
	"net"
	"testing"
	"time"
)

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
