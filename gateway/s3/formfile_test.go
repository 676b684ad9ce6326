//go:build unix

package s3_test

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A form's object is exactly its file, with all its metadata, or nothing.
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

// What follows a form's last boundary does not belong to its file, even if the policy limits the size.
func TestAFormsPolicyIsOfItsFileAlone(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	c := w.lease("orders/1001", 5)
	creds := w.issue("orders/1001", 5)
	put(t, c, bucket, invoice, "before")
	text := formUnder(creds, invoice, "x", nil, `["content-length-range", 5, 1000]`) + strings.Repeat("e", 100)
	if status, answer := w.post(text, nil); status != http.StatusBadRequest || !strings.Contains(answer, "EntityTooSmall") {
		t.Errorf("got %d %s", status, answer)
	}
	if got := get(t, c, bucket, invoice); got != "before" {
		t.Errorf("the object holds %q", got)
	}
}

// Some clients send no line break after the last boundary, which is not required.
func TestAFormEndsWithItsLastBoundary(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	c := w.lease("orders/1001", 5)
	creds := w.issue("orders/1001", 5)
	for _, data := range []string{"", "x", "data", "line\r\n--bcd\r\nmore", strings.Repeat("x", mib)} {
		text := formUnder(creds, invoice, data, nil, `["content-length-range", 0, `+strconv.Itoa(len(data))+`]`)
		if status, answer := w.post(strings.TrimSuffix(text, "\r\n"), nil); status != http.StatusNoContent {
			t.Errorf("%.30q: got %d %s", data, status, answer)
		}
		if got := get(t, c, bucket, invoice); got != data {
			t.Errorf("the object holds %.30q, want %.30q", got, data)
		}
	}
	put(t, c, bucket, invoice, "before")
	for _, end := range []string{formTail, "\n--b--\r\n", "b--\r\n", "--\r\n"} {
		if status, answer := w.post(strings.TrimSuffix(form(creds, invoice, "x", nil), end), nil); status != http.StatusBadRequest || !strings.Contains(answer, "MalformedPOSTRequest") {
			t.Errorf("without %q: got %d %s", end, status, answer)
		}
	}
	if got := get(t, c, bucket, invoice); got != "before" {
		t.Errorf("the object holds %q", got)
	}
}

// versitygw joins fields of one name, and would spend seconds on an unsigned form.
func TestAFormHasFewFields(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.bucket()
	text := strings.Repeat("--b\r\nContent-Disposition: form-data; name=x-amz-meta-a\r\n\r\n"+strings.Repeat("v", 40)+"\r\n", 15_000)
	began := time.Now()
	if status, answer := w.post(text+formHead+"x"+formTail, nil); status != http.StatusBadRequest || !strings.Contains(answer, "MaxPostPreDataLengthExceeded") {
		t.Errorf("got %d %s after %s", status, answer, time.Since(began))
	}
}

// No condition and no digest of a form is ignored: otherwise it could overwrite the object.
func TestAFormIsNotTakenWithoutWhatItAsksFor(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	c := w.lease("orders/1001", 5)
	creds := w.issue("orders/1001", 5)
	put(t, c, bucket, invoice, "before")
	for name, value := range map[string]string{
		"If-None-Match": "*", "If-Match": `"0"`, "Content-MD5": "kBUJtpcVaWcK1Dg7nR9vXQ==", "x-amz-checksum-crc32": "AAAAAA==",
		"Fencing-Token": "5", "Fencing-Stage": "a",
	} {
		lower := strings.ToLower(name)
		if status, answer := w.post(form(creds, invoice, "x", map[string]string{lower: value}), nil); status < 400 {
			t.Errorf("field %s: got %d %s", name, status, answer)
		}
		if status, answer := w.post(form(creds, invoice, "x", nil), map[string]string{name: value}); status < 400 {
			t.Errorf("header %s: got %d %s", name, status, answer)
		}
	}
	if got := get(t, c, bucket, invoice); got != "before" {
		t.Errorf("the object holds %q", got)
	}
}
