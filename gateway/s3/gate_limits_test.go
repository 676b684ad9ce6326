//go:build unix

package s3_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"

	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/gateway/s3/credentials"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/internal/tlsfiles"
)

// lingers makes the server hear a refused body to its end, however busy the machine is.
func lingers(c *config) { c.SetLingering(time.Minute) }

// wantSlowDown checks that a request was answered with 503 and Retry-After. A server that refuses a body lingers.
func (w *world) wantSlowDown(r raw) {
	w.t.Helper()
	res, text := w.send(r)
	if res.StatusCode != http.StatusServiceUnavailable || !strings.Contains(text, "SlowDown") || res.Header.Get("Retry-After") == "" {
		w.t.Errorf("%s: got %d, Retry-After %q, %s", r.method, res.StatusCode, res.Header.Get("Retry-After"), text)
	}
}

func TestUploadsAndRequestsBeyondTheirLimitAreToldToSlowDown(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		option   option
		readable bool // during an upload
	}{
		"uploads":  {func(cfg *config) { cfg.MaxUploads = 1 }, true},
		"requests": {func(cfg *config) { cfg.MaxRequests = 1 }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t, c.option, lingers)
			w.bucket()
			w.arm("orders/1001", 5)
			slow := newHalf(3 << 20)
			done := w.async(raw{creds: w.issue("orders/1001", 5), method: "PUT", path: "/orders/" + invoice, body: slow, size: 3 << 20})
			w.underWay(slow)
			if s := w.srv.Stats(); s.Uploads != 1 || s.Requests != 1 || s.Connections != 1 || s.BytesIn == 0 {
				t.Errorf("stats: %+v", s)
			}
			w.wantSlowDown(w.putRaw(5, "", "small"))
			w.wantSlowDown(w.putRaw(5, "", strings.Repeat("x", 1<<20))) // whether or not its body is sent completely
			read := raw{creds: w.issue("orders/1001", 5), method: "GET", path: "/orders"}
			if !c.readable {
				w.wantSlowDown(read)
			} else if res, text := w.send(read); res.StatusCode != http.StatusOK {
				t.Errorf("a read: got %d %s", res.StatusCode, text)
			}
			close(slow.resume)
			if a := <-done; a.status != http.StatusOK {
				t.Errorf("the upload under way: got %+v", a)
			}
			if res, text := w.send(w.putRaw(5, "", "after")); res.StatusCode != http.StatusOK {
				t.Errorf("after it: got %d %s", res.StatusCode, text)
			}
			testenv.Eventually(t, "nothing is at work", func() bool { s := w.srv.Stats(); return s.Uploads == 0 && s.Requests == 0 })
		})
	}
}

// A store that has no connection left for another read says so before any byte is sent.
func TestAReadBeyondTheConnectionsToTheStoreIsToldToSlowDown(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket, data := w.sourced()
	busy := fmt.Errorf("open blob: %w", blob.ErrBusy)
	w.store.openErr.Store(&busy)
	w.wantSlowDown(raw{creds: w.issue("orders/1001", 5), method: "GET", path: "/orders/" + copySource})
	w.wantSlowDown(w.copyRaw(5, "the copy"))
	w.store.openErr.Store(nil)
	if got := get(t, w.root(), bucket, copySource); got != data {
		t.Errorf("read %d bytes", len(got))
	}
	if res, text := w.send(w.copyRaw(5, "the copy")); res.StatusCode != http.StatusOK {
		t.Errorf("the copy, again: got %d %s", res.StatusCode, text)
	}
}

func TestARefusalReachesAClientThatGoesOnSending(t *testing.T) {
	t.Parallel()
	w := setup(t, lingers)
	w.bucket()
	w.arm("orders/1001", 5)
	const size = 8 << 20 // more than the socket buffers hold
	head := w.head(raw{
		creds: w.issue("orders/1001", 5), method: "PUT", path: "/orders/" + invoice, body: body(""), size: size,
		header: map[string]string{"x-amz-server-side-encryption": "AES256"},
	})
	if status, text := w.wire(head + strings.Repeat("x", size)); status != http.StatusNotImplemented {
		t.Errorf("got %d %s", status, text)
	}
}

func TestConnectionsBeyondTheirLimitAreToldToSlowDown(t *testing.T) {
	t.Parallel()
	files := filesIn(t)
	cert := certify(t, files, "s3.test")
	for _, scheme := range []string{"http", "https"} {
		w := setup(t, func(cfg *config) {
			cfg.MaxConnections, cfg.HeaderTimeout = 2, time.Minute // the idle ones stay open
			if scheme == "http" {
				return
			}
			var err error
			if cfg.TLS, err = files.Load(tlsfiles.Use{Port: "the S3 port"}, cfg.Logger); err != nil {
				t.Fatal(err)
			}
		})
		w.bucket()
		var idle []net.Conn
		for range 2 {
			conn, err := net.Dial("tcp", w.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			idle = append(idle, conn)
		}
		testenv.Eventually(t, "both are open", func() bool { return w.srv.Stats().Connections == 2 })
		list := func() error {
			_, err := w.virtual(scheme+"://127.0.0.1", w.dialing(cert), credentials.Credentials{AccessKeyID: rootAccess, SecretAccessKey: rootSecret}).
				ListBuckets(t.Context(), &awss3.ListBucketsInput{})
			return err
		}
		refusal := list()
		for range 4 { // on a busy machine a surplus connection may be closed before it is used
			if _, said := errors.AsType[smithy.APIError](refusal); said {
				break
			}
			refusal = list()
		}
		wantRefused(t, refusal, 503, "SlowDown")
		testenv.Eventually(t, "the surplus is closed", func() bool { return w.srv.Stats().Connections == 2 })
		_ = idle[0].Close()
		testenv.Eventually(t, "one is gone", func() bool { return w.srv.Stats().Connections == 1 })
		if err := list(); err != nil {
			t.Errorf("%s: with one place free: %v", scheme, err)
		}
	}
}

// head returns the bytes of an upload's head, for a connection of its own.
func (w *world) head(r raw) string { return w.headOf(r, "") }

// headOf signs another payload hash than that of an unsigned payload, if any.
func (w *world) headOf(r raw, payload string) string {
	w.t.Helper()
	r.payload = payload
	req := w.request(r)
	var head strings.Builder
	fmt.Fprintf(&head, "%s %s HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n", r.method, req.URL.RequestURI(), req.URL.Host, r.size)
	if err := req.Header.Write(&head); err != nil {
		w.t.Fatal(err)
	}
	return head.String() + "\r\n"
}

func TestAStalledUploadIsToldSo(t *testing.T) {
	t.Parallel()
	w := setup(t, func(c *config) { c.StallTimeout = 6 * time.Second })
	w.bucket()
	w.arm("orders/1001", 5)
	const size = 3 << 20
	head := w.head(raw{creds: w.issue("orders/1001", 5), method: "PUT", path: "/orders/" + invoice, body: body(""), size: size})
	if status, text := w.wire(head + strings.Repeat("x", size/2)); status != http.StatusBadRequest || !strings.Contains(text, "RequestTimeout") {
		t.Errorf("got %d %s", status, text)
	}
	testenv.Eventually(t, "given up", func() bool {
		return w.count("SELECT count(*) FROM objects.blobs WHERE state = 'condemned'") == 1 && w.blobs() == 0
	})
	w.nothingLeft(0, 0)
}

func TestNobodyHoldsAConnectionThatDoesNothing(t *testing.T) {
	t.Parallel()
	w := setup(t, func(c *config) { c.StallTimeout = 3 * time.Second })
	bucket := w.bucket()
	w.arm("orders/1001", 5)
	holder := w.holder("orders/1001", 5, func(o *awss3.Options) { o.RetryMaxAttempts = 8 }) // its upload may stall, too
	put(t, holder, bucket, invoice, strings.Repeat("x", 64<<20))
	for name, taken := range map[string]int{"idle after its answer": 16 << 10, "takes no more of its answer": 0} {
		path := "/orders/" + invoice
		if taken > 0 {
			path = "/orders"
		}
		conn, err := net.Dial("tcp", w.addr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, w.head(raw{creds: w.issue("orders/1001", 5), method: "GET", path: path, body: body("")})); err != nil {
			t.Fatal(err)
		}
		if taken > 0 {
			res, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil || res.StatusCode != http.StatusOK {
				t.Fatalf("%s: %+v, %v", name, res, err)
			}
			_ = readAll(t, res.Body)
		}
		testenv.Eventually(t, name, func() bool { s := w.srv.Stats(); return s.Connections == 0 && s.Requests == 0 })
		_ = conn.Close()
	}
}

// An upload must have the announced length, in whatever form the body is sent.
func TestAnUploadOfAnotherLengthThanAnnouncedIsRefused(t *testing.T) {
	t.Parallel()
	w := setup(t, func(c *config) { c.StallTimeout = 3 * time.Second })
	w.bucket()
	w.arm("orders/1001", 5)
	creds := w.issue("orders/1001", 5)
	for name, c := range map[string]struct {
		header map[string]string
		body   string
		size   int64
		want   string
	}{
		"more than S3 allows":        {nil, strings.Repeat("x", 64<<10), 5<<30 + 1, "EntityTooLarge"},
		"fewer bytes than decoded":   {chunked("10"), "8\r\n12345678\r\n0\r\n\r\n", 0, "IncompleteBody"},
		"more bytes than decoded":    {chunked("4"), "8\r\n12345678\r\n0\r\n\r\n", 0, ""},
		"no decoded length":          {chunked(""), "8\r\n12345678\r\n0\r\n\r\n", 0, "MissingContentLength"},
		"a decoded length below 0":   {chunked("-1"), "8\r\n12345678\r\n0\r\n\r\n", 0, ""},
		"a decoded length beyond 63": {chunked("9223372036854775808"), "8\r\n12345678\r\n0\r\n\r\n", 0, ""},
		"a chunk longer than it is":  {chunked("8"), "ffffffffffffffff\r\n12345678\r\n0\r\n\r\n", 0, ""},
		"a chunk of no length":       {chunked("8"), "x\r\n12345678\r\n0\r\n\r\n", 0, ""},
	} {
		size := c.size
		if size == 0 {
			size = int64(len(c.body))
		}
		r := raw{creds: creds, method: "PUT", path: "/orders/" + invoice, body: body(""), size: size, header: c.header}
		payload := ""
		if c.header != nil {
			payload = c.header["X-Amz-Content-Sha256"]
		}
		status, text := w.wire(w.headOf(r, payload) + c.body)
		if status < 400 || status >= 500 || !strings.Contains(text, c.want) {
			t.Errorf("%s: got %d %.300s, want %s", name, status, text, c.want)
		}
	}
	testenv.Eventually(t, "nothing stays", func() bool { return w.blobs() == 0 && w.srv.Stats().Requests == 0 })
	if n := w.count("SELECT count(*) FROM objects.versions"); n != 0 {
		t.Errorf("%d versions", n)
	}
}

func chunked(decoded string) map[string]string {
	h := map[string]string{"Content-Encoding": "aws-chunked", "X-Amz-Content-Sha256": "STREAMING-UNSIGNED-PAYLOAD-TRAILER", "X-Amz-Trailer": "x-amz-checksum-crc32"}
	if decoded != "" {
		h["X-Amz-Decoded-Content-Length"] = decoded
	}
	return h
}

// Not parallel: the limit applies to the process, and every other test writes files.
func TestADiskThatTakesNoMoreIs503AndTheNextUploadGoesThrough(t *testing.T) { //nolint:paralleltest // see above
	w := setup(t)
	bucket := w.bucket()
	c := w.lease("orders/1001", 5)
	put(t, c, bucket, invoice, "before")
	signal.Ignore(syscall.SIGXFSZ)
	var old syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &old); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 1 << 20, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	_, err := tryPut(t, c, bucket, invoice, strings.Repeat("x", 3<<20))
	small, smallErr := tryPut(t, c, bucket, "1001/small", "there is room for this")
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &old); err != nil {
		t.Fatal(err)
	}
	wantRefused(t, err, 503, "ServiceUnavailable", "blob store")
	if smallErr != nil || small == nil {
		t.Errorf("what fits: %v", smallErr)
	}
	if got := get(t, c, bucket, invoice); got != "before" {
		t.Errorf("the object holds %d bytes", len(got))
	}
	w.nothingLeft(2, 2)
	put(t, c, bucket, invoice, strings.Repeat("y", 3<<20))
}

func TestAStopLetsUploadsUnderWayFinish(t *testing.T) {
	t.Parallel()
	w := setup(t, func(c *config) { c.DrainTimeout = 30 * time.Second })
	w.bucket()
	w.arm("orders/1001", 5)
	idle, err := net.Dial("tcp", w.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = idle.Close() }()
	slow := newHalf(3 << 20)
	done := w.async(w.slowPut(slow))
	w.underWay(slow)
	w.stop()
	testenv.Eventually(t, "no more connections are taken", func() bool {
		conn, err := net.Dial("tcp", w.addr)
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	})
	close(slow.resume)
	if a := <-done; a.status != http.StatusOK {
		t.Errorf("got %+v", a)
	}
	if n := w.count("SELECT count(*) FROM objects.versions"); n != 1 {
		t.Errorf("%d versions", n)
	}
}

func TestAStopWaitsNoLongerThanItIsTold(t *testing.T) {
	t.Parallel()
	w := setup(t, func(c *config) { c.DrainTimeout = 200 * time.Millisecond })
	w.bucket()
	w.arm("orders/1001", 5)
	const size = 3 << 20
	answered := make(chan int, 1)
	head := w.head(raw{creds: w.issue("orders/1001", 5), method: "PUT", path: "/orders/" + invoice, body: body(""), size: size})
	go func() {
		defer close(answered)
		status, _ := w.wire(head + strings.Repeat("x", size/2))
		answered <- status
	}()
	testenv.Eventually(t, "the upload is under way", func() bool { return w.pending() == 1 })
	w.stop()
	if status := <-answered; status == http.StatusOK {
		t.Errorf("got %d", status)
	}
	<-w.ended
	w.nothingLeft(0, 0)
}

func (w *world) slowPut(h *half) raw {
	return raw{creds: w.issue("orders/1001", 5), method: "PUT", path: "/orders/" + invoice, body: h, size: int64(len(h.data))}
}
