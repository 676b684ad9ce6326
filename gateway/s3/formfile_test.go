//go:build unix

package s3_test

import (
	"net/http"
	"strings"
	"testing"
)

// A form's object is its file, with all that it says, or nothing.
func TestAFormStoresItsFileAndNothingElse(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	c := w.lease("orders/1001", 5)
	creds := w.issue("orders/1001", 5)
	const button = "\r\n--b\r\nContent-Disposition: form-data; name=\"submit\"\r\n\r\nUpload"
	for _, data := range []string{"data", "", "a\r\n-b\r\n"} {
		if status, text := w.post(form(creds, invoice, data+button, nil), nil); status != http.StatusNoContent {
			t.Fatalf("%q: got %d %s", data, status, text)
		}
		if got := get(t, c, bucket, invoice); got != data {
			t.Errorf("the object holds %q, want %q", got, data)
		}
	}
	if status, text := w.post(form(creds, invoice, "data"+button, nil), map[string]string{"Content-Type": `multipart/form-data; boundary="b "`}); status != http.StatusNoContent {
		t.Errorf("a blank at the boundary's end: got %d %s", status, text)
	}
	if got := get(t, c, bucket, invoice); got != "data" {
		t.Errorf("a blank at the boundary's end: the object holds %q", got)
	}
	const ranged = `["content-length-range", 5, 100]`
	if status, text := w.post(formUnder(creds, invoice, "data!"+button, nil, ranged), nil); status != http.StatusNoContent {
		t.Errorf("long enough: got %d %s", status, text)
	}
	put(t, c, bucket, invoice, "before")
	if status, text := w.post(formUnder(creds, invoice, "data"+button, nil, ranged), nil); status != http.StatusBadRequest || !strings.Contains(text, "EntityTooSmall") {
		t.Errorf("too small: got %d %s", status, text)
	}
	for name, text := range map[string]string{
		"a line break":               form(creds, invoice, "x", map[string]string{"x-amz-meta-a": "b\r\nX-Evil: 1"}),
		"in the type":                form(creds, invoice, "x", map[string]string{"content-type": "text/html\r\nX-Evil: 1"}),
		"a control":                  form(creds, invoice, "x", map[string]string{"x-amz-meta-a": "b\x01"}),
		"a name":                     form(creds, invoice, "x", map[string]string{"x-amz-meta-a b": "c"}),
		"a file name":                form(creds, "1001/${filename}", "x", nil),
		"and elsewhere, a file name": form(creds, invoice, "x", map[string]string{"x-amz-meta-a": "${filename}"}),
	} {
		status, answer := w.post(text, nil)
		if wanted := map[bool]int{true: 501, false: 400}[strings.HasSuffix(name, "a file name")]; status != wanted {
			t.Errorf("%s: got %d %s, want %d", name, status, answer, wanted)
		}
	}
	if got := get(t, c, bucket, invoice); got != "before" {
		t.Errorf("the object holds %q", got)
	}
}
