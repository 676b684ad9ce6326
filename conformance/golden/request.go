package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

// request is an HTTP request to the API, or to the S3 port with somebody's signature.
type request struct {
	api              bool
	as               keys
	method, target   string
	header, unsigned map[string]string // signed; added after signing, if not empty, and removed otherwise
	without          []string          // headers that requests to the API have by default
	body             string
	option           map[string]string
	ago, presigned   time.Duration // age of the signature; validity of a signature in the query
	changes          [][2]string   // of the bytes before they are sent: a pattern, its replacement
	takes            [][2]string   // a variable, what of the answer it becomes
	answer           *reply
}

var isHeader = regexp.MustCompile(`^([A-Z][\w-]*):\s*(.*)$`)

// newRequest reads a request: api or a signer, the method, the target; then options.
func (p *player) newRequest(s *step, text string) *request {
	r := &request{header: map[string]string{}, unsigned: map[string]string{}, option: map[string]string{}}
	parts := p.parts(s, text)
	words := strings.SplitN(parts[0], " ", 3)
	if len(words) < 3 {
		failf("write: api METHOD TARGET, or LEASE-OR-KEYS METHOD TARGET")
	}
	if r.api = words[0] == "api"; !r.api {
		r.as = p.getKeys(words[0])
	}
	r.method, r.target = words[1], words[2]
	for _, part := range parts[1:] {
		if m := isHeader.FindStringSubmatch(part); m != nil {
			r.header[m[1]] = m[2]
			continue
		}
		switch name, value, _ := strings.Cut(part, " "); name {
		case "unsigned":
			header, value := halves(value, ":")
			r.unsigned[header] = value
		case "without":
			r.without = append(r.without, value)
		case "ago":
			r.ago = must(time.ParseDuration(value))
		case "presigned":
			r.presigned = must(time.ParseDuration(value))
		case "replace":
			from, to := halves(value, " -> ")
			r.changes = append(r.changes, [2]string{from, must(unquoted(to))})
		case "take":
			variable, what := halves(value, " = ")
			if what == "" {
				failf("write: take VARIABLE = <ELEMENT>, .FIELD, ~PATTERN, status, brief or a header")
			}
			r.takes = append(r.takes, [2]string{variable, what})
		case "body":
			r.body = value
		case "payload", "trailer", "host", "note", "digest", "chunked", "cut-short":
			r.option[name] = value
		default:
			failf("unknown option %q of a request", name)
		}
	}
	if _, is := r.option["digest"]; is {
		r.header["Content-MD5"] = digestOf(r.body)
	}
	p.t.mask.keep[md5Of(r.body)] = true
	return r
}

// unquoted replaces the escapes of a Go string.
func unquoted(text string) (string, error) {
	return strconv.Unquote(`"` + strings.ReplaceAll(text, `"`, `\"`) + `"`)
}

// describe writes the request.
func (r *request) describe(t *transcript) {
	title, separator := fmt.Sprintf("=== %s %s", r.method, r.target), " "
	if !r.api {
		title += " (" + r.as.name + ")"
	}
	add := func(is bool, how string) {
		if is {
			title, separator = title+separator+how, ", "
		}
	}
	add(r.option["host"] != "", "host "+r.option["host"])
	add(r.presigned != 0, "presigned for "+r.presigned.String())
	add(r.ago != 0, "signed "+r.ago.String()+" ago")
	add(r.option["payload"] != "", "payload "+r.option["payload"])
	add(r.option["note"] != "", r.option["note"])
	t.linef("%s", title)
	for _, name := range sorted(r.header) {
		t.linef("> %s: %s", name, r.header[name])
	}
	for _, name := range sorted(r.unsigned) {
		t.linef("> %s: %s (unsigned)", name, r.unsigned[name])
	}
	for _, name := range r.without {
		t.linef("> without %s", name)
	}
	t.sent(r.body)
}

// send sends the request.
func (r *request) send(ctx context.Context, w *world) {
	addr := w.gateway.S3
	if r.api {
		addr = w.gateway.API
	}
	sent := r.bytes(ctx, addr)
	for _, c := range r.changes {
		pattern := must(regexp.Compile(c[0]))
		if !pattern.Match(sent) {
			failf("the request has nothing like %q to replace", c[0])
		}
		sent = pattern.ReplaceAllLiteral(sent, []byte(c[1]))
	}
	_, cut := r.option["cut-short"]
	r.answer = exchange(ctx, addr, r.method, sent, cut)
}

// bytes returns the signed request.
func (r *request) bytes(ctx context.Context, addr string) []byte {
	at, body, payload, trailer := time.Now().Add(-r.ago), r.body, r.option["payload"], r.option["trailer"]
	streaming := strings.HasPrefix(payload, "STREAMING-")
	_, unsized := r.option["chunked"]
	target, header := "http://"+cmp.Or(r.option["host"], addr), http.Header{"User-Agent": {"golden"}}
	if r.api {
		header.Set("Authorization", "Bearer "+bearer)
		header.Set("Content-Type", "application/json")
	} else {
		target += r.target
	}
	req := must(http.NewRequestWithContext(ctx, r.method, target, nil))
	if req.Header = header; r.api {
		req.URL.Opaque = r.target
	}
	for name, value := range r.header {
		header.Set(name, value)
	}
	for _, name := range r.without {
		header.Del(name)
	}
	if streaming {
		header.Set("X-Amz-Decoded-Content-Length", strconv.Itoa(len(body)))
		body = r.as.chunked(payload, r.body, trailer, "", at) // its length is signed
		if name, _, found := strings.Cut(trailer, ":"); found {
			header.Set("X-Amz-Trailer", name)
		}
	}
	if req.ContentLength = int64(len(body)); unsized {
		req.ContentLength = -1
	}
	r.sign(ctx, req, at)
	if streaming {
		_, seed, _ := strings.Cut(header.Get("Authorization"), "Signature=")
		body = r.as.chunked(payload, r.body, trailer, seed, at)
	}
	for name, value := range r.unsigned {
		if header.Set(name, value); value == "" {
			header.Del(name)
		}
	}
	if req.Body = http.NoBody; body != "" || unsized {
		req.Body = io.NopCloser(strings.NewReader(body))
	}
	var out bytes.Buffer
	try(req.Write(&out))
	return out.Bytes()
}

func (r *request) sign(ctx context.Context, req *http.Request, at time.Time) {
	switch {
	case r.as.access == "":
	case r.presigned != 0:
		query := req.URL.Query()
		query.Set("X-Amz-Expires", strconv.Itoa(int(r.presigned.Seconds())))
		req.URL.RawQuery = query.Encode()
		signed, _, err := v4.NewSigner().PresignHTTP(ctx, r.as.credentials(), req, unsignedPayload, "s3", region, at, plainPath)
		try(err)
		req.URL = must(url.Parse(signed))
	default:
		payload := cmp.Or(r.option["payload"], unsignedPayload)
		req.Header.Set("X-Amz-Content-Sha256", payload)
		try(v4.NewSigner().SignHTTP(ctx, r.as.credentials(), req, payload, "s3", region, at, plainPath))
	}
}

// brief is an answer's status and code; of the API also the challenge.
func (r *request) brief() string {
	a := r.answer
	if !r.api {
		return strings.TrimSpace(fmt.Sprintf("%d %s", a.status, a.element("Code")))
	}
	code := a.field("code")
	if code != "" {
		code = " " + code
	}
	return fmt.Sprintf("%d %s%s", a.status, a.header.Get("Www-Authenticate"), code)
}

// taken returns what a take names: <ELEMENT>, .FIELD, ~PATTERN, status, brief, or a header.
func (r *request) taken(what string) string {
	switch a := r.answer; {
	case what == "status":
		return strconv.Itoa(a.status)
	case what == "brief":
		return r.brief()
	case what[0] == '<':
		return a.element(strings.Trim(what, "<>"))
	case what[0] == '.':
		return a.field(what[1:])
	case what[0] == '~':
		if m := must(regexp.Compile(what[1:])).FindStringSubmatch(a.body); len(m) > 1 {
			return m[1]
		}
		return ""
	default:
		return a.header.Get(what)
	}
}

// complete is an error if the answer lacks something to take.
func (r *request) complete() error {
	for _, t := range r.takes {
		if r.taken(t[1]) == "" {
			return fmt.Errorf("the answer, %s, has no %s", r.brief(), t[1])
		}
	}
	return nil
}
