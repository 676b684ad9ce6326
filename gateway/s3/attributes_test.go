//go:build unix

package s3_test

import (
	"mime"
	"net/http"
	"strings"
	"testing"
	"time"
)

// Metadata that is not ASCII behaves as in S3: in whatever form it is sent, it is returned as an encoded word.
func TestMetadataThatIsNotASCII(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.bucket()
	w.arm("orders/1001", 5)
	for name, c := range map[string]struct{ sent, read string }{
		"UTF-8":                       {"Gr\u00fc\u00dfe \u00e9", "Gr\u00fc\u00dfe \u00e9"},
		"Latin-1, as boto3 sends it":  {"Hello World\xe9", "Hello World\u00e9"},
		"encoded words, base64":       {"=?UTF-8?B?R3LDvMOfZQ==?=", "Gr\u00fc\u00dfe"},
		"encoded words, quoted":       {"=?utf-8?Q?Gr=C3=BC=C3=9Fe?=", "Gr\u00fc\u00dfe"},
		"ASCII":                       {"plain = ?text?", "plain = ?text?"},
		"no encoded word":             {"=?what?", "=?what?"},
		"long":                        {strings.Repeat("\u20ac", 200), strings.Repeat("\u20ac", 200)},
		"an encoded word that was so": {"=?UTF-8?B?YWJj?=", "abc"},
	} {
		r := w.of("PUT", invoice, "data", map[string]string{"X-Amz-Meta-Colour": c.sent})
		r.invocation = ""
		if res, text := w.send(r); res.StatusCode != http.StatusOK {
			t.Errorf("%s: got %d %s", name, res.StatusCode, text)
			continue
		}
		for _, method := range []string{"GET", "HEAD"} {
			r := w.of(method, invoice, "", nil)
			res, _ := w.send(r)
			got := res.Header.Get("X-Amz-Meta-Colour")
			decoded, err := new(mime.WordDecoder).DecodeHeader(got)
			if err != nil || decoded != c.read {
				t.Errorf("%s: %s gives %q, which is %q, want %q", name, method, got, decoded, c.read)
			}
			for _, b := range []byte(got) {
				if b >= 0x80 {
					t.Errorf("%s: %s gives %q, which is not ASCII", name, method, got)
					break
				}
			}
		}
	}
}

// A body that is announced as too large is refused: the server neither asks for it nor reads it.
func TestABodyThatIsTooLargeIsRefusedBeforeItComes(t *testing.T) {
	t.Parallel()
	w := setup(t, func(c *config) { c.HeaderTimeout = time.Minute }) // longer than the test's patience
	w.bucket()
	w.arm("orders/1001", 5)
	const limit = 5 << 30
	for name, head := range map[string]string{
		"signed":          w.head(raw{creds: w.issue("orders/1001", 5), method: "PUT", path: "/orders/" + invoice, size: limit + 1}),
		"a part":          w.head(raw{creds: w.issue("orders/1001", 5), method: "PUT", path: "/orders/" + invoice + "?partNumber=1&uploadId=x", size: limit + 1}),
		"by nobody":       "PUT /orders/x HTTP/1.1\r\nHost: x\r\nContent-Length: 5368709121\r\n\r\n",
		"that would wait": "PUT /orders/x HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 5368709121\r\n\r\n",
		"in chunks":       "PUT /orders/x HTTP/1.1\r\nHost: x\r\nX-Amz-Decoded-Content-Length: 5368709121\r\nContent-Length: 5368719121\r\n\r\n",
		"that lies":       "PUT /orders/x HTTP/1.1\r\nHost: x\r\nFencegate-Too-Large: 0\r\nX-Amz-Decoded-Content-Length: 1\r\nContent-Length: 15368719121\r\n\r\n",
	} {
		if status, text := w.wire(head); status != http.StatusBadRequest || !strings.Contains(text, "EntityTooLarge") {
			t.Errorf("%s: got %d %s", name, status, text)
		}
	}
	res, text := w.send(raw{creds: w.issue("orders/1001", 5), method: "PUT", path: "/orders/" + invoice, body: body("data"), size: 4, unsigned: map[string]string{"Fencegate-Too-Large": "7"}})
	if res.StatusCode != http.StatusOK {
		t.Errorf("a client that says so itself: got %d %s", res.StatusCode, text)
	}
}

// The text of a 503 is accurate: whether PostgreSQL answered, and whether a repetition is recognized.
func TestTheTextOf503IsTrue(t *testing.T) {
	t.Parallel()
	f := &faulty{}
	w := setup(t, throughFaulty(t, f))
	w.bucket()
	w.arm("orders/1001", 5)
	for _, c := range []struct{ invocation, want string }{{"", "at most once"}, {none, "a second time"}} {
		f.strike(commitSQL, true, loseReply)
		r := w.putRaw(5, "", "data")
		r.invocation = c.invocation
		res, text := w.send(r)
		if res.StatusCode != http.StatusServiceUnavailable || !strings.Contains(text, "outcome is unknown") || !strings.Contains(text, c.want) {
			t.Errorf("invocation %q: got %d %s", c.invocation, res.StatusCode, text)
		}
		f.setDown(false)
	}
	w.exec("CREATE FUNCTION objects.busy() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE SQLSTATE '53100'; END $$")
	w.exec("CREATE TRIGGER busy BEFORE INSERT ON objects.versions EXECUTE FUNCTION objects.busy()")
	res, text := w.send(w.putRaw(5, "", "data"))
	if res.StatusCode != http.StatusServiceUnavailable || !strings.Contains(text, "53100") || strings.Contains(text, "reached") || strings.Contains(text, "not answer") {
		t.Errorf("a full disk: got %d %s", res.StatusCode, text)
	}
}

// A client must be able to read what an answer's headers hold: Latin-1 is twice as long as text.
func TestAnObjectsHeadersAreBounded(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	put(t, w.lease("orders/1001", 5), bucket, invoice, "before")
	for size, want := range map[int]int{5000: http.StatusBadRequest, 4000: http.StatusOK} {
		header := map[string]string{"Content-Type": strings.Repeat("x", size), "X-Amz-Meta-Colour": strings.Repeat("\xe9", 1900)}
		if res, text := w.send(w.of("PUT", invoice, "data", header)); res.StatusCode != want || want != http.StatusOK && !strings.Contains(text, "<Code>MetadataTooLarge") {
			t.Errorf("a content type of %d bytes: got %d %s", size, res.StatusCode, text)
		}
	}
}
