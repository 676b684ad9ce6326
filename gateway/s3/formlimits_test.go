//go:build unix

package s3_test

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fencegate/fencegate/gateway/s3/edge"
	"github.com/fencegate/fencegate/internal/testenv"
)

// A form is held in memory before anything in it is verified, so only a few may be at work.
func TestFormsBeyondTheirLimitAreToldToSlowDown(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.bucket()
	creds := w.issue("orders/1001", 5)
	w.arm("orders/1001", 5)
	var slow []net.Conn
	for range edge.MaxForms {
		var d net.Dialer
		conn, err := d.DialContext(t.Context(), "tcp", w.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		slow = append(slow, conn)
		head := "POST /orders HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=b\r\nContent-Length: 2000000\r\n\r\n"
		if _, err := io.WriteString(conn, head+strings.Repeat("x", 16<<10)); err != nil {
			t.Fatal(err)
		}
	}
	testenv.Eventually(t, "the forms are at work", func() bool { return w.srv.Stats().Requests == edge.MaxForms })
	if status, text := w.post(form(creds, invoice, "data", nil), nil); status != http.StatusServiceUnavailable || !strings.Contains(text, "SlowDown") {
		t.Errorf("one form more: got %d %s", status, text)
	}
	if res, text := w.send(w.putRaw(5, "", "data")); res.StatusCode != http.StatusOK {
		t.Errorf("an upload: got %d %s", res.StatusCode, text)
	}
	for _, conn := range slow {
		_ = conn.Close()
	}
	testenv.Eventually(t, "the forms have ended", func() bool { return w.srv.Stats().Requests == 0 })
	if status, text := w.post(form(creds, invoice, "data", nil), nil); status != http.StatusNoContent {
		t.Errorf("after them: got %d %s", status, text)
	}
}

// A client must be able to read what an answer's headers hold.
func TestAFormsFieldsFitInHeaders(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	creds := w.issue("orders/1001", 5)
	put(t, w.lease("orders/1001", 5), bucket, invoice, "before")
	for _, field := range []string{"content-type", "cache-control", "content-disposition", "expires"} {
		long := strings.Repeat("x", 600<<10)
		if status, text := w.post(form(creds, invoice, "data", map[string]string{field: long}), nil); status != http.StatusBadRequest || !strings.Contains(text, "<Code>MetadataTooLarge") {
			t.Errorf("%s: got %d %s", field, status, text)
		}
	}
	half := map[string]string{"content-type": strings.Repeat("x", 5000), "cache-control": strings.Repeat("x", 5000)}
	if status, text := w.post(form(creds, invoice, "data", half), nil); status != http.StatusBadRequest || !strings.Contains(text, "<Code>MetadataTooLarge") {
		t.Errorf("two together: got %d %s", status, text)
	}
	if got := get(t, w.root(), bucket, invoice); got != "before" {
		t.Errorf("the object holds %q", got)
	}
	delete(half, "content-type")
	if status, text := w.post(form(creds, invoice, "data", half), nil); status != http.StatusNoContent {
		t.Errorf("one of 5,000 bytes: got %d %s", status, text)
	}
}

// A form is valid for an hour from its date, so a date in the future would make it valid for longer.
func TestAFormIsNotOfTheFuture(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	creds := w.issue("orders/1001", 5)
	put(t, w.lease("orders/1001", 5), bucket, invoice, "before")
	now := time.Now().UTC()
	dated := func(date, day time.Time) map[string]string {
		return map[string]string{"x-amz-date": date.Format("20060102T150405Z"), "x-amz-credential": scope(creds, day)}
	}
	later, years, soon := now.Add(time.Hour), now.AddDate(5, 0, 0), now.Add(5*time.Minute)
	for name, fields := range map[string]map[string]string{
		"in an hour": dated(later, later), "in years": dated(years, years), "of another day": dated(now, now.AddDate(0, 0, 1)), "of an earlier day": dated(now, now.AddDate(0, 0, -1)),
	} {
		if status, text := w.post(form(creds, invoice, "data", fields), nil); status != http.StatusForbidden || !strings.Contains(text, "<Code>AccessDenied") {
			t.Errorf("%s: got %d %s", name, status, text)
		}
	}
	if got := get(t, w.root(), bucket, invoice); got != "before" {
		t.Errorf("the object holds %q", got)
	}
	if status, text := w.post(form(creds, invoice, "data", dated(soon, soon)), nil); status != http.StatusNoContent {
		t.Errorf("by a clock that is ahead: got %d %s", status, text)
	}
}
