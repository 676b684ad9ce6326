package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"
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

// brief is the status, with the code if there is one.
func (r *reply) brief() string {
	return strings.TrimSpace(fmt.Sprintf("%d %s", r.status, r.element("Code")))
}

// exchange sends bytes on a new connection and reads the answers up to a final one.
func exchange(ctx context.Context, addr, method string, sent []byte) (*reply, error) {
	return exchangeUntil(ctx, addr, method, sent, false)
}

// exchangeUntil is exchange. If ends is set, it closes the sending side after the last byte.
func exchangeUntil(ctx context.Context, addr, method string, sent []byte, ends bool) (*reply, error) {
	conn, err := dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	wrote := make(chan struct{})
	go func() { // the server may answer before it has read everything
		defer close(wrote)
		_, _ = conn.Write(sent)
		if half, can := conn.(*net.TCPConn); can && ends {
			_ = half.CloseWrite()
		}
	}()
	r := new(reply)
	in := bufio.NewReader(conn)
	for {
		head, err := readHead(in)
		if err != nil {
			if errors.Is(err, io.EOF) {
				r.head = append(r.head, "connection closed")
				return r, nil
			}
			return nil, err
		}
		lines := strings.Split(strings.TrimRight(head, "\r\n"), "\r\n")
		slices.SortFunc(lines[1:], func(a, b string) int { return strings.Compare(strings.ToLower(a), strings.ToLower(b)) })
		r.head = append(r.head, lines...)
		res, err := http.ReadResponse(bufio.NewReader(io.MultiReader(strings.NewReader(head), in)), &http.Request{Method: method})
		if err != nil {
			return nil, err
		}
		if res.StatusCode < http.StatusOK {
			continue
		}
		body, err := io.ReadAll(res.Body)
		if err != nil {
			r.head = append(r.head, "the body ends early")
		}
		r.status, r.header, r.body = res.StatusCode, res.Header, string(body)
		return r, res.Body.Close()
	}
}

func readHead(in *bufio.Reader) (string, error) {
	var head strings.Builder
	for {
		line, err := in.ReadString('\n')
		head.WriteString(line)
		if err != nil {
			return "", err
		}
		if strings.TrimRight(line, "\r\n") == "" {
			return head.String(), nil
		}
	}
}

// rawOf returns the request's bytes.
func rawOf(req *http.Request) ([]byte, error) {
	var out bytes.Buffer
	err := req.Write(&out)
	return out.Bytes(), err
}

// answer writes the reply into the transcript.
func (b *book) answer(r *reply) {
	body := r.body
	if long(body) {
		b.mask.keep[sumOf(body)] = true
	}
	masked := b.mask.of(body)
	for _, line := range r.head {
		if masked != body && strings.HasPrefix(strings.ToLower(line), "content-length:") {
			line = "Content-Length: <n>" // its length depends on masked values
		}
		b.lines("< ", line)
	}
	b.lines("", readable(body))
	b.out.WriteByte('\n')
}

const longBody = 1 << 14

// long reports that a body is recorded by its size and checksum.
func long(body string) bool { return len(body) > longBody || !utf8.ValidString(body) }

// isSpecification reports whether a body is /openapi.json. It changes with every route and type, and the reference's
// test compares it with both.
func isSpecification(body string) bool {
	rest, object := strings.CutPrefix(body, "{")
	return object && strings.HasPrefix(strings.TrimSpace(rest), `"openapi"`)
}

// readable splits a body into lines, so that a diff shows what changed.
func readable(body string) string {
	switch {
	case isSpecification(body):
		return "(the API's specification)"
	case long(body):
		return fmt.Sprintf("(%d bytes, MD5 %s)", len(body), sumOf(body))
	case strings.HasPrefix(body, "<") && strings.HasSuffix(strings.TrimSpace(body), ">"):
		return strings.ReplaceAll(body, "><", ">\n<")
	case strings.HasPrefix(body, "{") || strings.HasPrefix(body, "["):
		var out bytes.Buffer
		if json.Indent(&out, []byte(body), "", " ") == nil {
			return out.String()
		}
	}
	return body
}

// bodyLine records a sent body.
func (b *book) bodyLine(body string) {
	b.mask.keep[sumOf(body)] = true
	switch {
	case body == "":
	case len(body) > 1000 || !utf8.ValidString(body):
		b.linef("> (%d bytes, MD5 %s)", len(body), sumOf(body))
	default:
		b.lines("> ", readable(body))
	}
}
