package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strconv"
)

// net/http itself answers what is no HTTP, or has a path with a broken
// percent-encoding, before any handler sees it, in plain text: a status line and
// plainHeaders in one Write. problemListener makes problems of these answers.
const (
	plainHeaders = "\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n"
	statusLine   = "HTTP/1.1 "
)

type problemListener struct{ net.Listener }

func (l problemListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return problemConn{conn}, nil
}

type problemConn struct{ net.Conn }

func (c problemConn) Write(b []byte) (int, error) {
	status, ok := plainStatus(b)
	if !ok {
		return c.Conn.Write(b)
	}
	if _, err := c.Conn.Write(malformed(status)); err != nil {
		return 0, err
	}
	return len(b), nil
}

// CloseWrite lets net/http end its answer without a reset that overtakes it.
func (c problemConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Conn.Close()
}

// plainStatus reads the status of an answer by net/http itself.
func plainStatus(b []byte) (status int, ok bool) {
	rest, ok := bytes.CutPrefix(b, []byte(statusLine))
	if !ok || len(rest) < 3 {
		return 0, false
	}
	line := bytes.IndexByte(rest, '\r')
	if line < 0 || !bytes.HasPrefix(rest[line:], []byte(plainHeaders)) {
		return 0, false
	}
	status, err := strconv.Atoi(string(rest[:3]))
	return status, err == nil
}

func malformed(status int) []byte {
	p := word("invalid_input", status, http.StatusText(status), "The request is malformed: its first line, the percent-encoding of its path, or a header.", "See /openapi.json.")
	p.Field = "request"
	body, err := json.Marshal(p)
	if err != nil {
		body = []byte("{}") // strings and numbers can't fail
	}
	return fmt.Appendf(nil, "%s%d %s\r\nContent-Type: application/problem+json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
		statusLine, status, http.StatusText(status), len(body), body)
}
