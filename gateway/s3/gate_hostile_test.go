//go:build unix

package s3_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/fencegate/fencegate/gateway/s3/credentials"
)

// presigned returns a URL that was signed at at and is valid for expires seconds.
func (w *world) presigned(c credentials.Credentials, method, path, expires string, at time.Time) string {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, w.url("%s", path), nil)
	if err != nil {
		w.t.Fatal(err)
	}
	if expires != "" {
		req.URL.RawQuery = url.Values{"X-Amz-Expires": {expires}}.Encode()
	}
	signed, _, err := v4.NewSigner().PresignHTTP(w.t.Context(), aws.Credentials{AccessKeyID: c.AccessKeyID, SecretAccessKey: c.SecretAccessKey, SessionToken: c.SessionToken},
		req, "UNSIGNED-PAYLOAD", "s3", "us-east-1", at, func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true })
	if err != nil {
		w.t.Fatal(err)
	}
	return signed
}

func (w *world) fetch(method, url, data string, header ...string) (int, string) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, url, body(data))
	if err != nil {
		w.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := httpClient(w.t).Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	return res.StatusCode, readAll(w.t, res.Body)
}

func TestAPresignedURLIsGoodForItsTimeAndRequestOnly(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	put(t, w.lease("orders/1001", 5), bucket, invoice, "data")
	creds, object := w.issue("orders/1001", 5), "/orders/"+invoice
	now := time.Now()
	good := w.presigned(creds, "GET", object, "60", now)
	tampered, err := url.Parse(good)
	if err != nil {
		t.Fatal(err)
	}
	longer := tampered.Query()
	longer.Set("X-Amz-Expires", "6000")
	for name, c := range map[string]struct {
		method, url string
		status      int
		code        string
	}{
		"good":                {"GET", good, 200, ""},
		"a little fast":       {"GET", w.presigned(creds, "GET", object, "60", now.Add(time.Minute)), 200, ""},
		"expired":             {"GET", w.presigned(creds, "GET", object, "60", now.Add(-2*time.Minute)), 403, "AccessDenied"},
		"expired, a write":    {"PUT", w.presigned(creds, "PUT", object, "60", now.Add(-2*time.Minute)), 403, "AccessDenied"},
		"of the future":       {"GET", w.presigned(creds, "GET", object, "60", now.Add(time.Hour)), 403, "AccessDenied"},
		"too long":            {"GET", w.presigned(creds, "GET", object, "604801", now), 400, "AuthorizationQueryParametersError"},
		"no time":             {"GET", w.presigned(creds, "GET", object, "", now), 400, "AuthorizationQueryParametersError"},
		"negative":            {"GET", w.presigned(creds, "GET", object, "-1", now), 400, "AuthorizationQueryParametersError"},
		"no number":           {"GET", w.presigned(creds, "GET", object, "soon", now), 400, "AuthorizationQueryParametersError"},
		"more than a number":  {"GET", w.presigned(creds, "GET", object, "99999999999999999999", now), 400, "AuthorizationQueryParametersError"},
		"another method":      {"PUT", good, 403, "SignatureDoesNotMatch"},
		"another object":      {"GET", strings.Replace(good, invoice, "1002/x", 1), 403, "SignatureDoesNotMatch"},
		"a longer time":       {"GET", tampered.Scheme + "://" + tampered.Host + tampered.Path + "?" + longer.Encode(), 403, "SignatureDoesNotMatch"},
		"one more parameter":  {"GET", good + "&response-content-type=text%2Fhtml", 403, "SignatureDoesNotMatch"},
		"of no lease of ours": {"GET", w.presigned(credentials.Credentials{AccessKeyID: creds.AccessKeyID, SecretAccessKey: "x", SessionToken: creds.SessionToken}, "GET", object, "60", now), 403, "SignatureDoesNotMatch"},
	} {
		data := ""
		if c.method == "PUT" {
			data = "x"
		}
		if status, text := w.fetch(c.method, c.url, data); status != c.status || !strings.Contains(text, c.code) {
			t.Errorf("%s: got %d %.300s, want %d %s", name, status, text, c.status, c.code)
		}
	}
	// A URL signed with a lease's credentials is fenced like the lease, however long it is valid.
	write := w.presigned(creds, "PUT", object, "600", now)
	if status, text := w.fetch("PUT", write, "x", "X-Amz-Storage-Class", "GLACIER"); status < 400 {
		t.Errorf("an unsigned header: got %d %s", status, text)
	}
	w.arm("orders/1001", 6)
	if status, text := w.fetch("PUT", write, "stale"); status != 412 || !strings.Contains(text, "StaleFencingToken") {
		t.Errorf("stale: got %d %s", status, text)
	}
	if got := get(t, w.root(), bucket, invoice); got != "data" {
		t.Errorf("the object holds %q", got)
	}
}

func TestAClockThatIsWrongIsNamed(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.bucket()
	w.arm("orders/1001", 5)
	for skew, want := range map[time.Duration]string{-time.Hour: "RequestTimeTooSkewed", time.Hour: "RequestTimeTooSkewed", -5 * time.Minute: "", 5 * time.Minute: ""} {
		r := w.putRaw(5, "", "data")
		r.at = time.Now().Add(skew)
		res, text := w.send(r)
		if (want == "") != (res.StatusCode == http.StatusOK) || !strings.Contains(text, want) {
			t.Errorf("%v: got %d %s", skew, res.StatusCode, text)
		}
	}
}

// record stores what is logged.
type record struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (r *record) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(p)
}

func (r *record) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.String()
}

func TestNoSecretIsLogged(t *testing.T) {
	t.Parallel()
	log := &record{}
	f := &faulty{}
	w := setup(t, throughFaulty(t, f), func(c *config) {
		c.Logger = slog.New(slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	bucket := w.bucket()
	put(t, w.lease("orders/1001", 5), bucket, invoice, "data")
	creds, object := w.issue("orders/1001", 5), "/orders/"+invoice
	presented := w.seal("orders/1002", 7)
	root := credentials.Credentials{AccessKeyID: rootAccess, SecretAccessKey: rootSecret}
	forged := creds
	forged.SecretAccessKey = "wrong"
	requests := func() {
		w.fetch("GET", w.presigned(creds, "GET", object, "60", time.Now()), "")
		w.fetch("GET", w.presigned(creds, "GET", object, "60", time.Now().Add(-time.Hour)), "")
		w.fetch("PUT", w.presigned(w.issue("orders/1001", 4), "PUT", object, "60", time.Now()), "stale")
		w.fetch("GET", w.presigned(forged, "GET", object, "60", time.Now()), "")
		w.send(raw{creds: forged, method: "GET", path: object})
		w.send(w.putRaw(4, "", "stale"))
		w.send(raw{creds: root, method: "PUT", path: "/orders/1002/x", body: body("x"), size: 1, header: map[string]string{"Fencing-Token": presented}})
		w.send(raw{creds: root, method: "PUT", path: "/orders/1003/x", body: body("x"), size: 1, header: map[string]string{"Fencing-Token": presented}})
		w.wire("GET " + object + "?X-Amz-Signature=abc&X-Amz-Security-Token=" + creds.SessionToken + " HTTP/1.1\r\nHost: x\r\nbroken header\r\n\r\n")
	}
	requests()
	f.setDown(true)
	requests()
	f.setDown(false)
	text := log.String()
	for _, line := range []string{`"s3: answered"`, `"operation":"PutObject"`, `"code":"StaleFencingToken"`, `"s3: failed"`} {
		if !strings.Contains(text, line) {
			t.Errorf("%s is not logged", line)
		}
	}
	_, seal, _ := strings.Cut(presented, ".")
	for name, secret := range map[string]string{
		"a seal": seal, "a session token": creds.SessionToken, "a secret key": creds.SecretAccessKey, "root's": rootSecret,
		"a signature": "Signature=", "a presigned query": "X-Amz-", "an authorization": "AWS4-HMAC",
	} {
		for line := range strings.Lines(text) {
			if strings.Contains(line, secret) {
				t.Errorf("%s is logged: %s", name, line)
			}
		}
	}
}

func TestKeysAreTakenAsTheyAreOrNotAtAll(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.bucket()
	w.arm("orders/1001", 5)
	creds := w.issue("orders/1001", 5)
	for path, key := range map[string]string{
		"1001/../1002/x": "", "1001/%2e%2e/1002/x": "", "1001/..%2f1002/x": "", "../secret/x": "", "%2e%2e/secret/x": "", "1001/./x": "", ".": "", "..": "", "%2F..%2Fx": "",
		"1001/a%5C..%5Cb": `1001/a\..\b`, "1001/...": "1001/...", "1001//x": "1001//x", "1001/x/": "1001/x/", "1001/%E2%80%AEtxt": "1001/\u202etxt",
		"1001/%F0%9F%98%80": "1001/😀", "1001/e%CC%81": "1001/e\u0301", "1001/%C3%A9": "1001/\u00e9", "1001/%01%1F%7F": "1001/\x01\x1f\x7f",
		"1001/a%0D%0ASet-Cookie%3A%20x": "1001/a\r\nSet-Cookie: x", "1001/%EF%BF%BD": "1001/\ufffd", "1001/%3Cb%3E%26%27": `1001/<b>&'`, "1001/a%3Fb%23c": "1001/a?b#c",
		"1001/%2B%20": "1001/+ ", "1001/%C0%AE%C0%AE/x": "", "1001/%ED%A0%80": "",
	} {
		before := w.count("SELECT count(*) FROM objects.pointers")
		res, text := w.send(raw{creds: creds, method: "PUT", path: "/orders/" + path, body: body("x"), size: 1})
		after := w.count("SELECT count(*) FROM objects.pointers")
		if key == "" {
			// Refused, or stored under exactly these bytes and fenced by them.
			if plain, err := url.PathUnescape(path); res.StatusCode == http.StatusOK && (err != nil || w.count("SELECT count(*) FROM objects.pointers WHERE key = $1", plain) != 1) || res.StatusCode >= 500 {
				t.Errorf("%s: got %d %s", path, res.StatusCode, text)
			}
			continue
		}
		if res.StatusCode != http.StatusOK || after != before+1 || w.count("SELECT count(*) FROM objects.pointers WHERE bucket = 'orders' AND key = $1", key) != 1 {
			t.Errorf("%s: got %d %s", path, res.StatusCode, text)
			continue
		}
		if got := get(t, w.root(), "orders", key); got != "x" {
			t.Errorf("%q holds %q", key, got)
		}
	}
	if n := w.count("SELECT count(*) FROM objects.pointers WHERE bucket <> 'orders' OR key !~ '^1001(/|$)' AND key !~ '^\\.\\.?/?'"); n != 0 {
		t.Errorf("%d keys lie elsewhere", n)
	}
}

func TestDocumentsThatGrowOrNestAreRefused(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	c := w.lease("orders/1001", 5)
	put(t, c, bucket, invoice, "data")
	m := begin(t, c, bucket, "")
	bomb := `<?xml version="1.0"?><!DOCTYPE d [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>`
	object := "<Object><Key>1001/x</Key></Object>"
	for name, doc := range map[string]string{
		"entities":          bomb + "<Delete><Object><Key>&b;</Key></Object></Delete>",
		"a file":            `<?xml version="1.0"?><!DOCTYPE d [<!ENTITY a SYSTEM "file:///etc/passwd">]><Delete><Object><Key>&a;</Key></Object></Delete>`,
		"nesting":           strings.Repeat("<Delete>", 20_000),
		"nested and closed": strings.Repeat("<Delete>", 20_000) + strings.Repeat("</Delete>", 20_000),
		"too many":          "<Delete>" + strings.Repeat(object, 1001) + "</Delete>",
		"none":              "<Delete></Delete>",
		"not UTF-8":         "<Delete><Object><Key>1001/\xff</Key></Object></Delete>",
		"another charset":   `<?xml version="1.0" encoding="utf-16"?><Delete>` + object + `</Delete>`,
		"not closed":        "<Delete>" + object,
		"nothing":           "",
	} {
		res, text := w.send(raw{creds: w.issue("orders/1001", 5), method: "POST", path: "/orders?delete=", body: body(doc), size: int64(len(doc)), header: map[string]string{"Content-MD5": md5Of(doc)}})
		nothing := strings.Contains(text, "<DeleteResult></DeleteResult>") // nothing was named, so nothing was deleted
		if res.StatusCode != http.StatusBadRequest && !nothing || strings.Contains(text, "root:") {
			t.Errorf("delete, %s: got %d %.200s", name, res.StatusCode, text)
		}
		doc = strings.NewReplacer("Delete>", "CompleteMultipartUpload>", "Object>", "Part>", "Key>", "PartNumber>").Replace(doc)
		res, text = w.send(raw{creds: w.issue("orders/1001", 5), method: "POST", path: "/orders/" + invoice + "?uploadId=" + *m.id, body: body(doc), size: int64(len(doc))})
		if res.StatusCode != http.StatusBadRequest {
			t.Errorf("complete, %s: got %d %.200s", name, res.StatusCode, text)
		}
	}
	for _, number := range []string{"0", "-1", "10001", "2147483648", "4294967297", "9223372036854775808", "1e3", "0x1", ""} {
		doc := `<CompleteMultipartUpload><Part><PartNumber>` + number + `</PartNumber><ETag>"x"</ETag></Part></CompleteMultipartUpload>`
		for _, r := range []raw{
			{method: "POST", path: "/orders/" + invoice + "?uploadId=" + *m.id, body: body(doc), size: int64(len(doc))},
			{method: "PUT", path: "/orders/" + invoice + "?uploadId=" + *m.id + "&partNumber=" + number, body: body("x"), size: 1},
			{method: "PUT", path: "/orders/" + invoice + "?uploadId=" + *m.id + "&partNumber=" + number, header: map[string]string{"x-amz-copy-source": "orders/" + invoice}},
		} {
			r.creds = w.issue("orders/1001", 5)
			if res, text := w.send(r); res.StatusCode < 400 || res.StatusCode >= 500 {
				t.Errorf("%s, part %q: got %d %.200s", r.method, number, res.StatusCode, text)
			}
		}
	}
	if got := get(t, w.root(), bucket, invoice); got != "data" {
		t.Errorf("the object holds %q", got)
	}
	w.nothingLeft(1, 1)
}

func TestNumbersBeyondTheirRangeAreNoneOfOurs(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	const data = "data"
	put(t, w.lease("orders/1001", 5), bucket, invoice, data)
	m := begin(t, w.holder("orders/1001", 5), bucket, "")
	const big = "9223372036854775807"
	for _, r := range []string{
		"bytes=0-" + big, "bytes=0-18446744073709551616", "bytes=" + big + "-", "bytes=-" + big, "bytes=-9223372036854775808", "bytes=-0", "bytes=1-0", "bytes=--1", "bytes=a-b",
		"bytes=0-1,2-3", "bytes=" + strings.Repeat("0-1,", 500) + "0-1", "bits=0-1", "bytes=", "bytes=-", "bytes=3-" + big,
	} {
		for _, header := range []string{"Range", "X-Amz-Copy-Source-Range"} {
			q := raw{creds: w.issue("orders/1001", 5), method: "GET", path: "/orders/" + invoice, header: map[string]string{header: r}}
			if header != "Range" {
				q.method, q.path = "PUT", q.path+"?partNumber=1&uploadId="+*m.id
				q.header["X-Amz-Copy-Source"] = "orders/" + invoice
			}
			if res, text := w.send(q); res.StatusCode >= 500 || res.StatusCode == http.StatusPartialContent && !strings.Contains(data, text) {
				t.Errorf("%s: %.60s: got %d %.200s", header, r, res.StatusCode, text)
			}
		}
	}
	for _, number := range []string{"-1", "2147483648", "-2147483649", big, "9223372036854775808", "1e9", " 1", "+1"} {
		for _, query := range []string{"max-keys=", "list-type=2&max-keys=", "versions=&max-keys=", "uploads=&max-uploads="} {
			if res, text := w.send(raw{creds: w.issue("orders/1001", 5), method: "GET", path: "/orders?" + query + url.QueryEscape(number)}); res.StatusCode >= 500 {
				t.Errorf("%s%s: got %d %.200s", query, number, res.StatusCode, text)
			}
		}
		for _, query := range []string{"partNumber=", "uploadId=" + *m.id + "&max-parts=", "uploadId=" + *m.id + "&part-number-marker=", "attributes=&max-parts="} {
			if res, text := w.send(raw{creds: w.issue("orders/1001", 5), method: "GET", path: "/orders/" + invoice + "?" + query + url.QueryEscape(number), header: map[string]string{"X-Amz-Object-Attributes": "ObjectSize"}}); res.StatusCode >= 500 {
				t.Errorf("%s%s: got %d %.200s", query, number, res.StatusCode, text)
			}
		}
	}
}

// No bytes are parsed as another request than a proxy in front of this server would see.
func TestARequestHasOneEnd(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.bucket()
	w.arm("orders/1001", 5)
	head := func(lines string) string {
		return "PUT /orders/" + invoice + " HTTP/1.1\r\nHost: " + w.addr + "\r\n" + lines + "\r\n"
	}
	const second = "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
	for name, request := range map[string]string{
		"chunked and a length":   head("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n") + "0\r\n\r\n" + second,
		"a length and chunked":   head(fmt.Sprintf("Transfer-Encoding: chunked\r\nContent-Length: %d\r\n", 5+len(second))) + "0\r\n\r\n" + second,
		"two lengths":            head(fmt.Sprintf("Content-Length: 0\r\nContent-Length: %d\r\n", len(second))) + second,
		"two lengths in one":     head(fmt.Sprintf("Content-Length: 0, %d\r\n", len(second))) + second,
		"a signed length":        head("Content-Length: +0\r\n") + second,
		"a negative length":      head("Content-Length: -1\r\n") + second,
		"a length beyond 64":     head("Content-Length: 18446744073709551616\r\n") + second,
		"another encoding":       head("Transfer-Encoding: xchunked\r\n") + second,
		"two encodings":          head("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n") + "0\r\n\r\n" + second,
		"a space before a colon": head(fmt.Sprintf("Content-Length : %d\r\n", len(second))) + second,
		"a folded line":          head(fmt.Sprintf("X: a\r\n Content-Length: %d\r\n", len(second))) + second,
		"a bare line feed":       head(fmt.Sprintf("X: a\nContent-Length: %d\r\n", len(second))) + second,
		"a bare carriage return": head(fmt.Sprintf("X: a\rContent-Length: %d\r\n", len(second))) + second,
	} {
		if n, first := w.answers(request); n > 1 {
			t.Errorf("%s: %d answers, the first %d", name, n, first)
		}
	}
	w.nothingLeft(0, 0)
}

// answers counts the server's answers to some bytes, until it closes or stops answering.
func (w *world) answers(request string) (count, first int) {
	w.t.Helper()
	conn, err := net.Dial("tcp", w.addr)
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, request); err != nil {
		w.t.Fatal(err)
	}
	_ = conn.(*net.TCPConn).CloseWrite()
	_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	in := bufio.NewReader(conn)
	for {
		res, err := http.ReadResponse(in, nil)
		if err != nil {
			return count, first
		}
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
		if count++; count == 1 {
			first = res.StatusCode
		}
	}
}

func TestHeadersHaveALimit(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.bucket()
	for name, header := range map[string]string{"one": "X: " + strings.Repeat("x", 64<<10), "many": strings.Repeat("X: x\r\n", 10_000) + "X: x"} {
		if status, text := w.wire("GET /orders HTTP/1.1\r\nHost: x\r\n" + header + "\r\n\r\n"); status != 0 && (status != http.StatusBadRequest || !strings.Contains(text, "RequestHeaderSectionTooLarge")) {
			t.Errorf("%s: got %d %s", name, status, text)
		}
	}
}
