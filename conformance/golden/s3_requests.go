package main

import (
	"context"
	"net/http"
	"regexp"
	"strings"
	"time"
)

// playAuthentication sends requests with valid and invalid signatures of every form.
func playAuthentication(ctx context.Context, w *world, b *book) error {
	t := &talk{ctx: ctx, w: w, b: b}
	if err := w.bucket(ctx, "g-auth", "prefix:1", ""); err != nil {
		return err
	}
	l, err := w.acquire(ctx, "g-auth/1")
	if err != nil {
		return err
	}
	h := l.keys
	const object = "/g-auth/1/object"
	t.must(h, "PUT", object, body("hello"))
	b.part("the Authorization header")
	for _, as := range []principal{root, h} {
		t.do(as, "GET", object)
		t.do(as.forged(), "GET", object)
		t.do(as.forged(), "PUT", object, body("x"))
		t.do(as, "GET", object, ago(time.Hour))
		t.do(as, "GET", object, ago(-time.Hour))
		t.do(as, "PUT", object, body("x"), unsigned("X-Amz-Meta-Colour", "red"))
		t.do(as, "GET", object, unsigned("X-Amz-Date", ""))
		t.do(as, "GET", object, unsigned("X-Amz-Date", "nonsense"))
		t.do(as, "GET", object, unsigned("X-Amz-Content-Sha256", ""))
	}
	unknown := root
	unknown.name, unknown.access = "unknown", "nobody"
	t.do(unknown, "GET", object)
	without := h
	without.name, without.session = "lease without its session token", ""
	t.do(without, "GET", object)
	swapped := h
	swapped.name, swapped.access = "another access key with this session token", "ASIAAAAAAAAAAAAAAAAA"
	t.do(swapped, "GET", object)
	broken := h
	broken.name, broken.session = "a session token that is changed", h.session[:len(h.session)-4]+"AAAA"
	t.do(broken, "GET", object)
	with := root
	with.name, with.session = "root with a session token", h.session
	t.do(with, "GET", object)
	for _, value := range []string{
		"nonsense", "AWS golden-root:signature", "AWS4-HMAC-SHA256", "AWS4-HMAC-SHA256 Credential=x, SignedHeaders=host, Signature=y", "Bearer x",
		"AWS4-HMAC-SHA256 Credential=golden-root/20000101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=00",
		"AWS4-HMAC-SHA256 Credential=golden-root/20000101/eu-west-1/s3/aws4_request, SignedHeaders=host;x-amz-date, Signature=00",
		"AWS4-HMAC-SHA256 Credential=golden-root/20000101/us-east-1/ec2/aws4_request,SignedHeaders=host;x-amz-date,Signature=00", "",
	} {
		t.do(root, "GET", object, unsigned("Authorization", value))
	}
	t.presignedAndHosts(h, object)
	return t.err
}

// presignedAndHosts signs the query, the body's digest, and requests with the bucket in the host.
func (t *talk) presignedAndHosts(h principal, object string) {
	t.b.part("presigned")
	for _, as := range []principal{root, h} {
		t.do(as, "GET", object, presigned(time.Minute))
		t.do(as, "HEAD", object, presigned(time.Minute))
		t.do(as, "PUT", object, presigned(time.Minute), body("presigned"))
		t.do(as, "DELETE", object+"-x", presigned(time.Minute))
		t.do(as, "GET", object, presigned(time.Minute), ago(time.Hour))
		t.do(as, "GET", object, presigned(time.Minute), ago(-time.Hour))
		t.do(as, "GET", object, presigned(8*24*time.Hour))
		t.do(as, "GET", object, presigned(-time.Minute))
		t.do(as.forged(), "GET", object, presigned(time.Minute))
		t.do(as.forged(), "PUT", object, presigned(time.Minute), body("x"))
		t.do(as, "PUT", object, presigned(time.Minute), body("x"), unsigned("X-Amz-Meta-Colour", "red"))
		t.do(as, "PUT", object, presigned(time.Minute), body("x"), unsigned("X-Amz-Content-Sha256", hexSum("x")))
		t.do(as, "GET", object, presigned(time.Minute), unsigned("Authorization", "AWS4-HMAC-SHA256 Credential=x, SignedHeaders=host, Signature=y"))
	}
	t.do(anonymous, "GET", object+"?AWSAccessKeyId=golden-root&Expires=4102444800&Signature=x", note("version 2 of the signature"))
	t.do(anonymous, "GET", object+"?X-Amz-Algorithm=AWS4-HMAC-SHA256")
	t.b.part("the digest of the body")
	t.do(h, "PUT", object, body("hello"), payload(hexSum("hello")))
	t.do(h, "PUT", object, body("jello"), payload(hexSum("hello")))
	t.do(h, "PUT", object, body("hello"), payload("nonsense"))
	t.do(h, "GET", object, payload(hexSum("")))
	t.do(h, "GET", object, payload("nonsense"))
	t.b.part("a host per bucket")
	const domain = "g-auth." + s3Domain
	t.do(h, "GET", "/1/object", host(domain))
	t.do(h, "PUT", "/1/host", host(domain), body("hello"))
	t.do(root, "GET", "/?list-type=2", host(domain))
	t.do(root, "GET", "/?prefix=g-auth", host(s3Domain))
	t.do(root, "GET", object, host(s3Domain))
	t.do(root, "GET", "/1/object", host("g-nowhere."+s3Domain))
	t.do(h, "GET", object, host("elsewhere.test"))
	t.do(h, "GET", "/1/object", host("G-AUTH."+strings.ToUpper(s3Domain)))
	t.do(h, "GET", "/1/object", host(domain), changed(func(sent string) string {
		return strings.Replace(sent, "GET /1/object", "GET http://"+domain+"/1/object", 1)
	}), note("absolute"))
	t.do(h, "GET", "/1/object", host(domain), changed(func(sent string) string {
		return strings.Replace(sent, "GET /1/object", "GET http://elsewhere.test/1/object", 1)
	}), note("absolute, of another host"))
}

// playBodies sends bodies in chunks, truncated ones and too long ones.
func playBodies(ctx context.Context, w *world, b *book) error {
	t := &talk{ctx: ctx, w: w, b: b}
	if err := w.bucket(ctx, "g-bodies", "prefix:1", ""); err != nil {
		return err
	}
	l, err := w.acquire(ctx, "g-bodies/1")
	if err != nil {
		return err
	}
	h := l.keys
	const object = "/g-bodies/1/object"
	b.part("chunks")
	damaged := changed(func(sent string) string { return strings.Replace(sent, "\r\nhello", "\r\njello", 1) })
	cut := changed(func(sent string) string {
		head, _, _ := strings.Cut(sent, "\r\n\r\n")
		return contentLength.ReplaceAllString(head, "Content-Length: 5") + "\r\n\r\nhello"
	})
	for _, kind := range []string{signedChunks, signedChunksTrailer, plainChunksTrailer} {
		trailer := "x-amz-checksum-crc32:NhCmhg=="
		if kind == signedChunks {
			trailer = ""
		}
		t.do(h, "PUT", object, body("hello"), chunks(kind, trailer))
		t.do(root, "GET", object)
		t.do(h, "PUT", object, body("hello"), chunks(kind, trailer), damaged, note("damaged"))
		t.do(h, "PUT", object, body("hello"), chunks(kind, trailer), cut, note("no chunks"))
		t.do(h, "PUT", object, body("hello"), chunks(kind, "x-amz-checksum-crc32:AAAAAA=="), note("wrong checksum"))
		t.do(h, "PUT", object, body("hello"), chunks(kind, "x-amz-checksum-nonsense:AAAAAA=="), note("unknown checksum"))
		t.do(h, "PUT", object, body("hello"), chunks(kind, trailer), unsigned("X-Amz-Decoded-Content-Length", ""), note("no length"))
		t.do(h, "PUT", object, body("hello"), chunks(kind, trailer), unsigned("X-Amz-Decoded-Content-Length", "4"), note("another length"))
		t.do(root, "PUT", object, body("hello"), chunks(kind, trailer))
		t.do(root, "GET", object)
	}
	t.do(h, "PUT", object, body("hello"), chunks("STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD", ""))
	t.do(h, "PUT", object, body("hello"), chunks("STREAMING-NONSENSE", ""))
	b.part("lengths")
	length := func(value string) option {
		return changed(func(sent string) string { return contentLength.ReplaceAllString(sent, value) })
	}
	transfer := func(c *s3Call) { c.transfer = true }
	t.do(h, "PUT", object, body("hello"), transfer, note("Transfer-Encoding: chunked"))
	t.do(h, "PUT", object, body("hello"), length("Content-Length: 5\r\nContent-Length: 4"), note("two lengths"))
	t.do(h, "PUT", object, body("hello"), length("Content-Length: x"), note("length x"))
	t.do(h, "PUT", object, body("hello"), length("Content-Length: -5"), note("length -5"))
	t.do(h, "PUT", object, body("hello"), length("Content-Length: 5368709121"), ends, note("5 GiB and a byte, cut short"))
	t.do(h, "PUT", object, body("hello"), length("Content-Length: 6"), ends, note("6 bytes, cut short"))
	t.do(h, "PUT", object, body("hello"), length("Content-Length: 100000"), ends, note("100000 bytes, cut short"))
	t.do(h, "PUT", object, body("hello"), header("Expect", "100-continue"))
	t.do(root, "PUT", object, body("hello"), header("Expect", "100-continue"))
	t.do(h, "PUT", object, body("hello"), header("Expect", "nonsense"))
	t.do(h, "PUT", object, body(strings.Repeat("x", 70<<10)))
	t.do(root, "PUT", object, body(strings.Repeat("x", 70<<10)))
	return t.err
}

var contentLength = regexp.MustCompile(`Content-Length: \d+`)

// playEdge sends unsupported methods, limits, odd paths and CORS requests.
func playEdge(ctx context.Context, w *world, b *book) error {
	t := &talk{ctx: ctx, w: w, b: b}
	if err := w.bucket(ctx, "g-edge", "none", ""); err != nil {
		return err
	}
	t.must(root, "PUT", "/g-edge/object", body("hello"))
	b.part("methods")
	for _, method := range []string{"PATCH", "TRACE", "OPTIONS", "CONNECT", "PROPFIND", "POST"} {
		for _, target := range []string{"/", "/g-edge", "/g-edge/object"} {
			t.do(root, method, target)
		}
	}
	t.do(root, "PUT", "/", body("x"))
	t.do(root, "DELETE", "/")
	t.do(root, "HEAD", "/")
	b.part("paths")
	for _, path := range []string{"//", "//object", "/g-edge//object", "/g-edge/../g-edge/object", "/%67-edge/object", "/g-edge%2Fobject", "/g-edge/object%20", "/G-EDGE/object"} {
		t.do(root, "GET", path)
	}
	for _, path := range []string{"/g-edge/%", "/g-edge/%zz", "g-edge/object", "*", "http://", "/g-edge/a b"} {
		t.do(root, "GET", "/g-edge/object", changed(func(sent string) string { return strings.Replace(sent, "GET /g-edge/object", "GET "+path, 1) }), note("as "+path))
	}
	b.part("CORS")
	cors := `<CORSConfiguration><CORSRule><AllowedOrigin>http://a.test</AllowedOrigin><AllowedMethod>GET</AllowedMethod><AllowedMethod>PUT</AllowedMethod>` +
		`<AllowedHeader>x-amz-*</AllowedHeader><ExposeHeader>Fencing-Code</ExposeHeader><MaxAgeSeconds>60</MaxAgeSeconds></CORSRule></CORSConfiguration>`
	origin := func(name string, more ...string) option {
		return unsigned(append([]string{"Origin", name}, more...)...)
	}
	preflight := func(name, method string, more ...string) option {
		return origin(name, append([]string{"Access-Control-Request-Method", method}, more...)...)
	}
	t.do(anonymous, "OPTIONS", "/g-edge/object", preflight("http://a.test", "GET"), note("no rules"))
	t.must(root, "PUT", "/g-edge?cors", body(cors), header("Content-MD5", md5Of(cors)))
	t.do(anonymous, "OPTIONS", "/g-edge/object", preflight("http://a.test", "GET"))
	t.do(anonymous, "OPTIONS", "/g-edge", preflight("http://a.test", "PUT", "Access-Control-Request-Headers", "x-amz-date, x-amz-meta-a"))
	t.do(anonymous, "OPTIONS", "/g-edge/object", preflight("http://a.test", "PUT", "Access-Control-Request-Headers", "authorization"))
	t.do(anonymous, "OPTIONS", "/g-edge/object", preflight("http://a.test", "DELETE"))
	t.do(anonymous, "OPTIONS", "/g-edge/object", preflight("http://b.test", "GET"))
	t.do(anonymous, "OPTIONS", "/g-edge/object", preflight("http://a.test", "nonsense"))
	t.do(anonymous, "OPTIONS", "/g-edge/object", origin("http://a.test"))
	t.do(anonymous, "OPTIONS", "/g-nowhere/object", preflight("http://a.test", "GET"))
	t.do(root, "GET", "/g-edge/object", origin("http://a.test"))
	t.do(root, "GET", "/g-edge/object", origin("http://b.test"))
	t.do(root, "GET", "/g-edge/nothing", origin("http://a.test"))
	t.do(anonymous, "PUT", "/g-edge/object", origin("http://a.test"))
	t.do(root, "GET", "/g-edge?list-type=2", origin("http://a.test"))
	if err := t.limits(); err != nil {
		return err
	}
	return t.err
}

// limits sends requests that are too long, and invalid ones.
func (t *talk) limits() error {
	t.b.part("limits")
	t.do(root, "GET", "/g-edge/object", unsigned("X-Long", strings.Repeat("x", 9<<10)))
	t.do(root, "GET", "/g-edge/"+strings.Repeat("k", 9<<10))
	long := "<Tagging>" + strings.Repeat(" ", 2<<20) + "</Tagging>"
	t.do(root, "PUT", "/g-edge?tagging", body(long), header("Content-MD5", md5Of(long)))
	long = "<Tagging>" + strings.Repeat(" ", 65<<10) + "</Tagging>"
	t.do(root, "PUT", "/g-edge?tagging", body(long), header("Content-MD5", md5Of(long)))
	t.b.part("what is no request")
	for _, text := range []string{"nonsense\r\n\r\n", "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "GET / HTTP/1.1\r\n\r\n", "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "GET / HTTP/1.0\r\n\r\n"} {
		t.b.linef("=== %q", text)
		r, err := exchange(t.ctx, t.w.s3, http.MethodGet, []byte(text))
		if err != nil {
			return err
		}
		t.b.answer(r)
	}
	return nil
}
