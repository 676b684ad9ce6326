package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// talk is a series of S3 requests in the transcript. The first error ends it: later requests are omitted.
type talk struct {
	ctx context.Context
	w   *world
	b   *book
	err error
}

// s3Call is one request.
type s3Call struct {
	as             principal
	method, target string
	header         map[string]string // signed
	unsigned       map[string]string // added after signing; an empty value removes a header
	body           string
	payload        string        // X-Amz-Content-Sha256; default UNSIGNED-PAYLOAD
	host           string        // default: the port's address
	presign        time.Duration // sign the query instead of the header
	ago            time.Duration // age of the signature
	trailer        string        // for a body in chunks
	transfer       bool          // without a Content-Length
	change         func(sent string) string
	ends           bool // the connection's sending side is closed after it
	note           string
}

type option func(*s3Call)

func header(pairs ...string) option {
	return func(c *s3Call) { put(&c.header, pairs) }
}

func unsigned(pairs ...string) option {
	return func(c *s3Call) { put(&c.unsigned, pairs) }
}

func put(into *map[string]string, pairs []string) {
	if *into == nil {
		*into = map[string]string{}
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		(*into)[pairs[i]] = pairs[i+1]
	}
}

func body(text string) option          { return func(c *s3Call) { c.body = text } }
func host(name string) option          { return func(c *s3Call) { c.host = name } }
func payload(kind string) option       { return func(c *s3Call) { c.payload = kind } }
func ago(d time.Duration) option       { return func(c *s3Call) { c.ago = d } }
func presigned(d time.Duration) option { return func(c *s3Call) { c.presign = d } }
func note(text string) option          { return func(c *s3Call) { c.note = text } }

// ends closes the sending side after the request.
func ends(c *s3Call) { c.ends = true }

// changed changes the bytes before they are sent.
func changed(how func(string) string) option { return func(c *s3Call) { c.change = how } }

// chunks sends the body in chunks.
func chunks(kind, trailer string) option {
	return func(c *s3Call) { c.payload, c.trailer = kind, trailer }
}

// do makes a request.
func (t *talk) do(as principal, method, target string, options ...option) *reply {
	c := &s3Call{as: as, method: method, target: target}
	for _, o := range options {
		o(c)
	}
	t.b.linef("=== %s %s (%s)%s", method, target, as.name, c.how())
	for _, name := range sorted(c.header) {
		t.b.linef("> %s: %s", name, c.header[name])
	}
	for _, name := range sorted(c.unsigned) {
		t.b.linef("> %s: %s (unsigned)", name, c.unsigned[name])
	}
	t.b.bodyLine(c.body)
	r := t.send(c)
	if t.err == nil {
		t.b.answer(r)
	}
	return r
}

// quiet sends a request outside the transcript.
func (t *talk) quiet(as principal, method, target string, options ...option) *reply {
	c := &s3Call{as: as, method: method, target: target}
	for _, o := range options {
		o(c)
	}
	t.b.mask.keep[sumOf(c.body)] = true
	return t.send(c)
}

// must is quiet for a request that has to succeed.
func (t *talk) must(as principal, method, target string, options ...option) *reply {
	r := t.quiet(as, method, target, options...)
	if t.err == nil && r.status >= http.StatusMultipleChoices {
		t.err = fmt.Errorf("%s %s as %s: %d %s", method, target, as.name, r.status, r.body)
	}
	return r
}

func (c *s3Call) how() string {
	var how []string
	if c.host != "" {
		how = append(how, "host "+c.host)
	}
	if c.presign != 0 {
		how = append(how, fmt.Sprintf("presigned for %s", c.presign))
	}
	if c.ago != 0 {
		how = append(how, fmt.Sprintf("signed %s ago", c.ago))
	}
	if c.payload != "" {
		how = append(how, "payload "+c.payload)
	}
	if c.note != "" {
		how = append(how, c.note)
	}
	if len(how) == 0 {
		return ""
	}
	return " " + strings.Join(how, ", ")
}

// send sends the request.
func (t *talk) send(c *s3Call) *reply {
	r := &reply{header: http.Header{}}
	if t.err != nil {
		return r
	}
	var sent []byte
	if sent, t.err = t.bytes(c); t.err != nil {
		return r
	}
	var got *reply
	if got, t.err = exchangeUntil(t.ctx, t.w.s3, c.method, sent, c.ends); t.err != nil {
		t.err = fmt.Errorf("%s %s: %w", c.method, c.target, t.err)
		return r
	}
	return got
}

// bytes returns the signed request's bytes.
func (t *talk) bytes(c *s3Call) ([]byte, error) {
	at := time.Now().Add(-c.ago)
	addr := t.w.s3
	if c.host != "" {
		addr = c.host
	}
	req, err := http.NewRequestWithContext(t.ctx, c.method, "http://"+addr+c.target, strings.NewReader(c.body))
	if err != nil {
		return nil, err
	}
	if c.payload == "" {
		c.payload = unsignedPayload
	}
	req.Header.Set("User-Agent", "golden")
	for name, value := range c.header {
		req.Header.Set(name, value)
	}
	if strings.HasPrefix(c.payload, "STREAMING-") {
		req.Header.Set("X-Amz-Decoded-Content-Length", strconv.Itoa(len(c.body)))
		c.body = c.as.chunked(c.payload, c.body, c.trailer, "", at) // only for its length
		if name, _, found := strings.Cut(c.trailer, ":"); found {
			req.Header.Set("X-Amz-Trailer", name)
		}
	}
	req.ContentLength = int64(len(c.body))
	if c.transfer {
		req.ContentLength = -1
	}
	if err := c.sign(t.ctx, req, at); err != nil {
		return nil, err
	}
	for name, value := range c.unsigned {
		if req.Header.Set(name, value); value == "" {
			req.Header.Del(name)
		}
	}
	req.Body = io.NopCloser(strings.NewReader(c.body))
	if c.body == "" && !c.transfer {
		req.Body = http.NoBody
	}
	sent, err := rawOf(req)
	if err == nil && c.change != nil {
		sent = []byte(c.change(string(sent)))
	}
	return sent, err
}

func (c *s3Call) sign(ctx context.Context, req *http.Request, at time.Time) error {
	switch {
	case c.as.access == "":
		return nil
	case c.presign != 0:
		query := req.URL.Query()
		query.Set("X-Amz-Expires", strconv.Itoa(int(c.presign.Seconds())))
		req.URL.RawQuery = query.Encode()
		signed, err := c.as.presign(ctx, req, at)
		if err == nil {
			req.URL, err = url.Parse(signed)
		}
		return err
	}
	req.Header.Set("X-Amz-Content-Sha256", c.payload)
	if err := c.as.sign(ctx, req, c.payload, at); err != nil {
		return err
	}
	if strings.HasPrefix(c.payload, "STREAMING-") {
		_, seed, _ := strings.Cut(req.Header.Get("Authorization"), "Signature=")
		decoded, _ := strconv.Atoi(req.Header.Get("X-Amz-Decoded-Content-Length"))
		c.body = c.as.chunked(c.payload, decodedBody(c.body, decoded), c.trailer, seed, at)
	}
	return nil
}

// decodedBody is the data of the first chunk.
func decodedBody(chunked string, size int) string {
	_, rest, _ := strings.Cut(chunked, "\r\n")
	return rest[:size]
}
