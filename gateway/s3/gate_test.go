//go:build unix

package s3_test

import (
	"io"
	"net"
	"net/http"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencegate/fencegate/gateway/s3/credentials"
	"github.com/fencegate/fencegate/internal/testenv"
)

// watched is a long body that calls a function while it is sent.
type watched struct {
	left  int
	taken int
	look  func()
}

func (w *watched) Read(p []byte) (int, error) {
	if w.left == 0 {
		return 0, io.EOF
	}
	n := min(len(p), w.left)
	for i := range p[:n] {
		p[i] = 'x'
	}
	if w.taken>>23 != (w.taken+n)>>23 {
		w.look()
	}
	w.left, w.taken = w.left-n, w.taken+n
	return n, nil
}

const (
	formHead = "--b\r\nContent-Disposition: form-data; name=\"key\"\r\n\r\n1001/x\r\n--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\n"
	formTail = "\r\n--b--\r\n"
)

// Not parallel: it checks the process's heap and temporary folder.
func TestABodyNobodySignedForIsNotTaken(t *testing.T) {
	w := setup(t)
	w.bucket()
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary)
	const size = 64 * mib
	for _, c := range []struct{ method, path, want string }{
		{"POST", "/orders", "EntityTooLarge"}, {"PUT", "/orders/1001/x", ""}, {"POST", "/orders?delete", ""},
	} {
		var files int
		var before, now runtime.MemStats
		var peak uint64
		look := func() {
			found, _ := filepath.Glob(filepath.Join(temporary, "*"))
			files = max(files, len(found))
			runtime.ReadMemStats(&now)
			peak = max(peak, now.HeapInuse)
		}
		runtime.GC()
		runtime.ReadMemStats(&before)
		form := io.MultiReader(strings.NewReader(formHead), &watched{left: size, look: look}, strings.NewReader(formTail))
		req, err := http.NewRequestWithContext(t.Context(), c.method, w.url("%s", c.path), form)
		if err != nil {
			t.Fatal(err)
		}
		req.ContentLength = size + int64(len(formHead)+len(formTail))
		req.Header.Set("Content-Type", "multipart/form-data; boundary=b")
		// Else the connection was closed before the whole body was sent.
		if res, err := httpClient(t).Do(req); err == nil {
			text := readAll(t, res.Body)
			if res.StatusCode < 400 || !strings.Contains(text, c.want) {
				t.Errorf("%s %s: got %d %s", c.method, c.path, res.StatusCode, text)
			}
		}
		look()
		if grown := int64(peak) - int64(before.HeapInuse); grown > 24*mib || files > 0 {
			t.Errorf("%s %s: the heap grew by %d MiB, and %d temporary files came up", c.method, c.path, grown/mib, files)
		}
	}
}

func TestAnObjectMayLookLikeAForm(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	w.arm("orders/1001", 5)
	form := formHead + "data" + formTail
	header := map[string]string{"Content-Type": "multipart/form-data; boundary=b"}
	creds := w.issue("orders/1001", 5)
	for _, data := range []string{form, "no form at all"} {
		res, text := w.send(raw{creds: creds, method: "PUT", path: "/orders/" + invoice, body: body(data), size: int64(len(data)), header: header})
		if res.StatusCode != http.StatusOK {
			t.Fatalf("put: got %d %s", res.StatusCode, text)
		}
		if got := get(t, w.root(), bucket, invoice); got != data {
			t.Errorf("the object holds %q", got)
		}
	}
}

func TestOnlyUploadsHaveALongBody(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.bucket()
	w.arm("orders/1001", 5)
	creds := w.issue("orders/1001", 5)
	const size = 3 * mib
	for _, c := range []struct{ method, path string }{
		{"POST", "/orders?delete="},
		{"POST", "/orders/" + invoice + "?uploadId=0190"},
		{"PUT", "/orders/" + invoice + "?tagging="},
		{"PUT", "/orders/" + invoice + "?acl="},
		{"PUT", "/more"},
		{"POST", "/orders/" + invoice + "?uploads="},
	} {
		r := raw{creds: creds, method: c.method, path: c.path, size: size, header: map[string]string{"x-amz-checksum-crc32": "AAAAAA=="}}
		r.body = io.LimitReader(&zeros{left: size}, size)
		res, err := httpClient(t).Do(w.request(r))
		if err != nil {
			continue // closed before the whole body was sent
		}
		if text := readAll(t, res.Body); res.StatusCode != http.StatusBadRequest || !strings.Contains(text, "EntityTooLarge") {
			t.Errorf("%s %s: got %d %s", c.method, c.path, res.StatusCode, text)
		}
		r.body, r.size = io.LimitReader(&zeros{left: 10}, 10), -1 // chunked
		res, text := w.send(r)
		if res.StatusCode != http.StatusLengthRequired || !strings.Contains(text, "MissingContentLength") {
			t.Errorf("chunked %s %s: got %d %s", c.method, c.path, res.StatusCode, text)
		}
	}
}

func TestATokenHeaderNeedsTheSignatureThatTheFrontChecked(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	presented := w.seal("orders/1001", 5)
	signed, err := awss3.NewPresignClient(w.root()).PresignPutObject(t.Context(), &awss3.PutObjectInput{Bucket: &bucket, Key: aws.String(invoice)})
	if err != nil {
		t.Fatal(err)
	}
	for _, authorization := range []string{
		"", "x SignedHeaders=fencing-token", "AWS4-HMAC-SHA256 Credential=root/20260101/us-east-1/s3/aws4_request, SignedHeaders=fencing-token, Signature=00",
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, signed.URL, body("x"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Fencing-Token", presented)
		if authorization != "" {
			req.Header.Set("Authorization", authorization)
		}
		res, err := httpClient(t).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if text := readAll(t, res.Body); res.StatusCode < 400 {
			t.Errorf("with Authorization %q: got %d %s", authorization, res.StatusCode, text)
		}
	}
	w.nothingLeft(0, 0)
}

func TestNoAnswerRepeatsASeal(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.bucket()
	presented := w.seal("orders/1001", 5)
	res, text := w.send(raw{
		creds: credentials.Credentials{AccessKeyID: rootAccess, SecretAccessKey: "wrong"}, method: "PUT", path: "/orders/" + invoice,
		body: body("x"), size: 1, header: map[string]string{"Fencing-Token": presented},
	})
	if res.StatusCode != http.StatusForbidden || !strings.Contains(text, "SignatureDoesNotMatch") || strings.Contains(text, "CanonicalRequest") || strings.Contains(text, presented) {
		t.Errorf("got %d %s", res.StatusCode, text)
	}
	if got := res.Header.Get("Server"); got != "fencegate" {
		t.Errorf("the server calls itself %q", got)
	}
}

// trickle sends a byte at intervals until the server cuts the connection, which it must do in time.
func (w *world) trickle(head string, within time.Duration) {
	w.t.Helper()
	var d net.Dialer
	conn, err := d.DialContext(w.t.Context(), "tcp", w.addr)
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, head); err != nil {
		w.t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _, _ = io.Copy(io.Discard, conn); close(ended) }()
	tick, deadline := time.NewTicker(20*time.Millisecond), time.After(within)
	defer tick.Stop()
	for {
		select {
		case <-ended:
			return
		case <-deadline:
			w.t.Errorf("after %v the server still listens to %.40q", within, head)
			_ = conn.Close()
			<-ended
			return
		case <-tick.C:
			_, _ = conn.Write([]byte("a"))
		}
	}
}

func TestBytesNowAndThenKeepNoConnection(t *testing.T) {
	t.Parallel()
	w := setup(t, func(c *config) {
		c.HeaderTimeout, c.UploadTimeout, c.StallTimeout = 5*time.Second, 6*time.Second, time.Minute
	})
	w.bucket()
	w.trickle("GET / HTTP/1.1\r\nX: ", 30*time.Second)
	w.arm("orders/1001", 5)
	slow := slowly{t.Context().Done()}
	done := w.async(raw{creds: w.issue("orders/1001", 5), method: "PUT", path: "/orders/" + invoice, body: io.MultiReader(&zeros{left: 64 << 10}, slow), size: 1 << 20})
	select {
	case a := <-done:
		if a.status != 400 && a.status != 0 { // 0: the connection was cut before the answer was read
			t.Errorf("got %+v", a)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the server still waits for the upload")
	}
	testenv.Eventually(t, "the upload is given up", func() bool { return w.count("SELECT count(*) FROM objects.blobs WHERE state = 'condemned'") == 1 })
	testenv.Eventually(t, "its places are free for the next one", func() bool {
		s := w.srv.Stats()
		return s.Uploads == 0 && s.Requests == 0 && s.Connections == 0
	})
}

// Clients keep idle connections ready: an answer on one would not belong to any request.
func TestAConnectionThatSaysNothingIsEndedWithoutAWord(t *testing.T) {
	t.Parallel()
	w := setup(t, func(c *config) { c.HeaderTimeout = 6 * time.Second })
	for head, want := range map[string]string{"": "", "GET / HT": "RequestTimeout"} {
		t.Run("after "+head, func(t *testing.T) {
			t.Parallel()
			var d net.Dialer
			conn, err := d.DialContext(t.Context(), "tcp", w.addr)
			if err != nil {
				t.Fatal(err)
			}
			_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
			if _, err := io.WriteString(conn, head); err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(conn)
			if err != nil || want == "" && len(got) > 0 || !strings.Contains(string(got), want) {
				t.Errorf("after %q: %q, %v", head, got, err)
			}
			_ = conn.Close()
		})
	}
}

// slowly is a reader of one byte at intervals, until the test ends.
type slowly struct{ end <-chan struct{} }

func (s slowly) Read(p []byte) (int, error) {
	select {
	case <-time.After(20 * time.Millisecond):
		return copy(p, "x"), nil
	case <-s.end:
		return 0, io.ErrUnexpectedEOF
	}
}
