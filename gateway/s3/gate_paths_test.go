//go:build unix

package s3_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// A request's operation follows from its decoded path.
func TestAnEscapedPathIsThatOfItsKey(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	c := w.lease("orders/1001", 5)
	put(t, c, bucket, invoice, "data")
	creds := w.issue("orders/1001", 5)
	send := func(r raw) (int, string) {
		r.creds = creds
		req := w.request(r)
		req.URL.RawPath = "/orders%2F" + strings.ReplaceAll(invoice, "/", "%2F") // signed in decoded form
		res, err := httpClient(t).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, readAll(t, res.Body)
	}
	object := "/orders/" + invoice
	for _, r := range []raw{
		{method: "DELETE", path: object + "?lifecycle="},
		{method: "PUT", path: object + "?requestPayment=", body: body("x"), size: 1},
	} {
		if status, text := send(r); status != http.StatusNotImplemented {
			t.Errorf("%s %s: got %d %s", r.method, r.path, status, text)
		}
	}
	if got := get(t, c, bucket, invoice); got != "data" {
		t.Errorf("the object holds %q", got)
	}
	const size = 3 * mib // more than a document may have
	if status, text := send(raw{method: "PUT", path: object, body: io.LimitReader(&zeros{left: size}, size), size: size}); status != http.StatusOK {
		t.Errorf("an upload: got %d %s", status, text)
	}
	for _, path := range []string{"/orders/1001/100%", "/orders/1001/%zz", "/orders%"} {
		req := "PUT " + path + " HTTP/1.1\r\nHost: " + w.addr + "\r\nContent-Length: 0\r\n\r\n"
		if status, text := w.wire(req); status != http.StatusBadRequest || !strings.Contains(text, "InvalidURI") {
			t.Errorf("%s: got %d %s", path, status, text)
		}
	}
}

// A PUT cannot choose its version id.
func TestAPutNamesNoVersion(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	c := w.lease("orders/1001", 5)
	put(t, c, bucket, invoice, "data")
	for _, id := range []string{"null", strings.Repeat("0", 32), ""} {
		r := w.putRaw(5, "", "other")
		r.path += "?versionId=" + id
		if res, text := w.send(r); res.StatusCode != http.StatusBadRequest || !strings.Contains(text, "InvalidArgument") {
			t.Errorf("version %q: got %d %s", id, res.StatusCode, text)
		}
	}
	if got := get(t, c, bucket, invoice); got != "data" {
		t.Errorf("the object holds %q", got)
	}
}
