package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"
)

// reply is an answer as received.
type reply struct {
	head   []string // the status line and the header lines, as sent
	status int
	header http.Header
	body   string
}

// element returns the text of the first XML element with the name.
func (r *reply) element(name string) string {
	_, rest, _ := strings.Cut(r.body, "<"+name+">")
	text, _, _ := strings.Cut(rest, "</"+name+">")
	return text
}

// field returns a member of a JSON object.
func (r *reply) field(name string) string {
	var object map[string]any
	if _ = json.Unmarshal([]byte(r.body), &object); object[name] == nil {
		return ""
	}
	return fmt.Sprint(object[name])
}

// exchange sends bytes on a new connection and reads the answers up to a final one. If ends is set, it closes the
// sending side after the last byte.
func exchange(ctx context.Context, addr, method string, sent []byte, ends bool) *reply {
	conn := dial(ctx, addr)
	defer func() { _ = conn.Close() }()
	go func() { // the server may answer before it has read everything
		_, _ = conn.Write(sent)
		if half, can := conn.(*net.TCPConn); can && ends {
			_ = half.CloseWrite()
		}
	}()
	r, in := new(reply), bufio.NewReader(conn)
	for r.status < http.StatusOK {
		head := ""
		for !strings.HasSuffix(head, "\r\n\r\n") {
			line, err := in.ReadString('\n')
			if errors.Is(err, io.EOF) {
				r.head = append(r.head, "connection closed")
				return r
			}
			head += must(line, err)
		}
		lines := strings.Split(strings.TrimRight(head, "\r\n"), "\r\n")
		slices.SortFunc(lines[1:], func(a, b string) int { return strings.Compare(strings.ToLower(a), strings.ToLower(b)) })
		r.head = append(r.head, lines...)
		res := must(http.ReadResponse(bufio.NewReader(io.MultiReader(strings.NewReader(head), in)), &http.Request{Method: method})) //nolint:bodyclose // the connection is closed
		body, err := io.ReadAll(res.Body)
		if err != nil {
			r.head = append(r.head, "the body ends early")
		}
		r.status, r.header, r.body = res.StatusCode, res.Header, string(body)
		try(res.Body.Close())
	}
	return r
}

// dial opens a connection with timeouts for all operations.
func dial(ctx context.Context, addr string) net.Conn {
	conn := must(new(net.Dialer).DialContext(ctx, "tcp", addr))
	try(conn.SetDeadline(time.Now().Add(20 * time.Second)))
	return conn
}
