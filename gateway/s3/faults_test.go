//go:build unix

package s3_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/gateway/objects/maintenance"
	"github.com/fencegate/fencegate/internal/testenv"
)

const commitSQL = "objects.commit_put"

// putRaw returns an upload with a chosen invocation id.
func (w *world) putRaw(token int, invocation, data string) raw {
	return raw{creds: w.issue("orders/1001", tokenOf(token)), method: "PUT", path: "/orders/" + invoice, body: body(data), size: int64(len(data)), invocation: invocation}
}

func TestAnUploadThatIsCutShortLeavesNoObject(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.bucket()
	w.arm("orders/1001", 5)
	for _, size := range []int64{100, 3 << 20} { // within the first read, and far beyond it
		req := w.request(raw{creds: w.issue("orders/1001", 5), method: "PUT", path: "/orders/" + invoice, body: body(""), size: size})
		conn, err := net.Dial("tcp", w.addr)
		if err != nil {
			t.Fatal(err)
		}
		var head strings.Builder
		fmt.Fprintf(&head, "PUT %s HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n", req.URL.EscapedPath(), req.URL.Host, size)
		if err := req.Header.Write(&head); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, head.String()+"\r\n"+strings.Repeat("x", int(size/2))); err != nil {
			t.Fatal(err)
		}
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		res, err := http.ReadResponse(bufio.NewReader(conn), req)
		if err == nil { // or it closes the connection; versitygw itself reads a small body
			if text := readAll(t, res.Body); res.StatusCode < 400 || size > 100 && !strings.Contains(text, "IncompleteBody") && !strings.Contains(text, "RequestTimeout") {
				t.Errorf("%d bytes: got %d %s", size, res.StatusCode, text)
			}
		}
		_ = conn.Close()
	}
	testenv.Eventually(t, "cleaned up", func() bool {
		return w.count("SELECT count(*) FROM objects.blobs WHERE state = 'condemned'") == 1 && w.blobs() == 0
	})
	w.nothingLeft(0, 0)
}

func TestAStalledUploadIsCutOff(t *testing.T) {
	t.Parallel()
	w := setup(t, func(c *config) { c.StallTimeout = 3 * time.Second })
	w.bucket()
	w.arm("orders/1001", 5)
	slow := newHalf(3 << 20)
	defer close(slow.resume)
	done := w.async(raw{creds: w.issue("orders/1001", 5), method: "PUT", path: "/orders/" + invoice, body: slow, size: 3 << 20})
	<-slow.reached
	testenv.Eventually(t, "given up", func() bool {
		return w.count("SELECT count(*) FROM objects.blobs WHERE state = 'condemned'") == 1 && w.blobs() == 0
	})
	_ = done
	w.nothingLeft(0, 0)
}

func TestPostgreSQLAwayIs503AndNothingIsHalfDone(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, way option) {
		f := &faulty{}
		w := setup(t, throughFaulty(t, f), way)
		stored := min(len(w.reserve()), 1) // during: if no blob is at hand, none is stored
		bucket := w.bucket()
		holder := w.lease("orders/1001", 5)
		put(t, holder, bucket, invoice, "before")
		f.setDown(true)
		_, err := tryPut(t, holder, bucket, invoice, "during")
		wantRefused(t, err, 503, "ServiceUnavailable", "PostgreSQL")
		_, err = holder.GetObject(t.Context(), getInput(bucket, invoice))
		wantRefused(t, err, 503, "ServiceUnavailable", "PostgreSQL")
		f.setDown(false)
		if got := get(t, holder, bucket, invoice); got != "before" {
			t.Errorf("the object holds %q", got)
		}
		put(t, holder, bucket, invoice, "after")
		if pending, blobs := w.pending(), w.blobs(); pending != stored || blobs != 2+stored {
			t.Errorf("%d blobs are pending, want %d; %d are stored, want %d", pending, stored, blobs, 2+stored)
		}
		w.age("25 hours")
		w.sweep(maintenance.Swept{Condemned: 1 + stored, Deleted: 1 + stored}, maintenance.Sweep{}) // before, and during
		w.nothingLeft(2, 1)
	})
}

func TestPostgreSQLLostBetweenUploadAndCommit(t *testing.T) {
	t.Parallel()
	f := &faulty{}
	w := setup(t, throughFaulty(t, f))
	bucket := w.bucket()
	put(t, w.lease("orders/1001", 5), bucket, invoice, "before")
	slow := newHalf(3 << 20)
	done := w.async(raw{creds: w.issue("orders/1001", 5), method: "PUT", path: "/orders/" + invoice, body: slow, size: 3 << 20, invocation: "one"})
	w.underWay(slow)
	f.setDown(true)
	close(slow.resume)
	if a := <-done; a.status != 503 { // a broken connection may have carried the commit: then the outcome is unknown
		t.Errorf("got %+v", a)
	}
	f.setDown(false)
	if got := get(t, w.root(), bucket, invoice); got != "before" {
		t.Errorf("the object holds %d bytes", len(got))
	}
	// Its bytes stay until the sweep: at the time a commit could still be in flight.
	if n := w.pending(); n != 1 {
		t.Errorf("%d blobs are pending, want 1", n)
	}
	if res, text := w.send(w.putRaw(5, "one", "after")); res.StatusCode != http.StatusOK {
		t.Errorf("the retry: got %d %s", res.StatusCode, text)
	}
}

func TestACommitWhoseAcknowledgementIsLostIsResolved(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		faults   []fault
		thenDown bool
		status   int
		object   string
		versions int
		spare    bool
	}{
		"executed, reply lost":                            {[]fault{loseReply}, false, 200, "new", 2, false},
		"lost before it was sent":                         {[]fault{loseRequest}, false, 200, "new", 2, false},
		"lost twice":                                      {[]fault{loseReply, loseReply}, false, 200, "new", 2, false},
		"arrives after its repetition":                    {[]fault{delayRequest}, false, 200, "new", 2, false},
		"executed, reply lost, and PostgreSQL stays away": {[]fault{loseReply}, true, 503, "new", 2, false},
		"executed, reply lost, and one connection stays":  {[]fault{loseReply}, true, 200, "new", 2, true}, // used to ask for the outcome
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bothWays(t, func(t *testing.T, way option) {
				f := &faulty{spare: c.spare}
				var pool *pgxpool.Pool
				w := setup(t, throughFaulty(t, f), way, func(cfg *config) { pool = cfg.Pool })
				bucket := w.bucket()
				put(t, w.lease("orders/1001", 5), bucket, invoice, "old")
				openAtLeast(t, pool, 2)
				f.strike(commitSQL, c.thenDown, c.faults...)
				res, text := w.send(w.putRaw(5, "id", "new"))
				if res.StatusCode != c.status || f.left() != 0 {
					t.Errorf("got %d %s; %d faults left", res.StatusCode, text, f.left())
				}
				if c.status == 503 && !strings.Contains(text, "outcome is unknown") {
					t.Errorf("got %s", text)
				}
				if f.delayed != nil {
					f.delayed()
				}
				f.setDown(false)
				if got := get(t, w.root(), bucket, invoice); got != c.object {
					t.Errorf("the object holds %q", got)
				}
				w.nothingLeft(c.versions, c.versions)
				// The client's own retry of the same request gets the first answer and changes nothing.
				if res, text := w.send(w.putRaw(5, "id", "new")); res.StatusCode != http.StatusOK || res.Header.Get("Etag") != etagOf("new") {
					t.Errorf("retry: got %d %s", res.StatusCode, text)
				}
				w.nothingLeft(c.versions, c.versions)
			})
		})
	}
}

// openAtLeast opens at least n connections of the pool.
func openAtLeast(t *testing.T, pool *pgxpool.Pool, n int) {
	t.Helper()
	for range n {
		conn, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
	}
}

func TestADelayedCommitOfARefusedUploadNeverTakesEffect(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, way option) {
		f := &faulty{}
		w := setup(t, throughFaulty(t, f), way)
		bucket := w.bucket()
		holder := w.lease("orders/1001", 5)
		put(t, holder, bucket, invoice, "one")
		f.strike(commitSQL, false, delayRequest)
		r := w.putRaw(5, "late", "new")
		r.header = map[string]string{"If-Match": etagOf("two")}
		if res, text := w.send(r); res.StatusCode != http.StatusPreconditionFailed {
			t.Errorf("got %d %s", res.StatusCode, text)
		}
		put(t, holder, bucket, invoice, "two") // now the condition would be met
		f.delayed()
		if got := get(t, holder, bucket, invoice); got != "two" {
			t.Errorf("a write that was refused took effect later: the object holds %q", got)
		}
	})
}

func TestADeletionWhoseAcknowledgementIsLostIsResolved(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]fault{"reply lost": loseReply, "request lost": loseRequest, "request delayed": delayRequest} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &faulty{}
			w := setup(t, throughFaulty(t, f))
			bucket := w.bucket()
			holder := w.lease("orders/1001", 5)
			put(t, holder, bucket, invoice, "old")
			f.strike("objects.commit_deletion", false, first)
			if res, text := w.send(raw{creds: w.issue("orders/1001", 5), method: "DELETE", path: "/orders/" + invoice}); res.StatusCode != http.StatusNoContent {
				t.Errorf("got %d %s", res.StatusCode, text)
			}
			put(t, holder, bucket, invoice, "new")
			if f.delayed != nil {
				f.delayed()
			}
			if got := get(t, holder, bucket, invoice); got != "new" {
				t.Errorf("the object holds %q", got)
			}
		})
	}
}

// botocore does not sign amz-sdk-invocation-id, the AWS SDK for Go does.
func TestALateFirstAttemptNeverOverwritesALaterWrite(t *testing.T) {
	t.Parallel()
	for name, sign := range map[string]func(raw) raw{"signed": func(r raw) raw { return r }, "unsigned": unsignedInvocation} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			bucket := w.bucket()
			w.arm("orders/1001", 5)
			const size = 3 << 20
			first := newHalf(size)
			stalled := w.async(sign(raw{creds: w.issue("orders/1001", 5), method: "PUT", path: "/orders/" + invoice, body: first, size: size, invocation: "one request"}))
			w.underWay(first)
			retry := sign(w.putRaw(5, "one request", strings.Repeat("x", size)))
			if res, text := w.send(retry); res.StatusCode != http.StatusOK {
				t.Fatalf("the retry: got %d %s", res.StatusCode, text)
			}
			if res, text := w.send(sign(w.putRaw(5, "another", "the later write"))); res.StatusCode != http.StatusOK {
				t.Fatalf("the later write: got %d %s", res.StatusCode, text)
			}
			close(first.resume)
			if a := <-stalled; a.status != 200 || a.etag != etagOf(strings.Repeat("x", size)) {
				t.Errorf("the first attempt: got %+v, want its retry's answer", a)
			}
			if got := get(t, w.root(), bucket, invoice); got != "the later write" {
				t.Errorf("the object holds %d bytes", len(got))
			}
			w.nothingLeft(2, 2)
			res, text := w.send(sign(w.putRaw(5, "another", "other bytes")))
			if res.StatusCode != http.StatusBadRequest || !strings.Contains(text, "invocation") {
				t.Errorf("an invocation id for another request: got %d %s", res.StatusCode, text)
			}
			w.nothingLeft(2, 2)
		})
	}
}

// unsignedInvocation sends the request's amz-sdk-invocation-id outside its signature.
func unsignedInvocation(r raw) raw {
	r.unsigned, r.invocation = map[string]string{"Amz-Sdk-Invocation-Id": r.invocation}, none
	return r
}

func TestALateDeletionNeverRemovesALaterWrite(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	holder := w.lease("orders/1001", 5)
	put(t, holder, bucket, invoice, "old")
	deletion := raw{creds: w.issue("orders/1001", 5), method: "DELETE", path: "/orders/" + invoice, invocation: "deletion"}
	for range 2 {
		if res, text := w.send(deletion); res.StatusCode != http.StatusNoContent {
			t.Errorf("got %d %s", res.StatusCode, text)
		}
		put(t, holder, bucket, invoice, "new")
	}
	if got := get(t, holder, bucket, invoice); got != "new" {
		t.Errorf("the object holds %q", got)
	}
}

func TestAFullDiskIs503AndLeavesNothing(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, way option) {
		w := setup(t, way)
		bucket := w.bucket()
		holder := w.lease("orders/1001", 5)
		w.store.putErr = fmt.Errorf("write: %w", syscall.ENOSPC)
		_, err := tryPut(t, holder, bucket, invoice, "x")
		wantRefused(t, err, 503, "ServiceUnavailable", "blob store")
		w.nothingLeft(0, 0)
	})
}

func TestAnUploadInNobodysWayWhenItsBackendIsEnded(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, way option) {
		w := setup(t, way)
		bucket := w.bucket()
		holder := w.lease("orders/1001", 5)
		// A session that holds the pointer makes the commit wait after its check: the next arm must end it.
		put(t, holder, bucket, invoice, "old")
		tx, err := w.admin.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
		if _, err := tx.Exec(t.Context(), "SELECT * FROM objects.pointers FOR UPDATE"); err != nil {
			t.Fatal(err)
		}
		done := w.async(w.putRaw(5, "waiting", "stale"))
		testenv.Eventually(t, "the commit waits", func() bool {
			return w.count("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%commit_put%' AND datname = current_database()") == 1
		})
		w.arm("orders/1001", 6) // ends the waiting session after the grace period
		if a := <-done; a.status != 412 || !strings.Contains(a.body, "StaleFencingToken") {
			t.Errorf("got %+v", a)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := get(t, w.root(), bucket, invoice); got != "old" {
			t.Errorf("the object holds %q", got)
		}
		w.nothingLeft(1, 1)
	})
}

// zeros is n zero bytes; each read checks the heap.
type zeros struct {
	left int64
	peak uint64
	next int64
}

func (z *zeros) Read(p []byte) (int, error) {
	if z.left == 0 {
		return 0, io.EOF
	}
	if z.left <= z.next {
		z.next -= 16 << 20
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		z.peak = max(z.peak, m.HeapInuse)
	}
	n := min(int64(len(p)), z.left)
	clear(p[:n])
	z.left -= n
	return int(n), nil
}

func TestMemoryStaysFlatForALargeUpload(t *testing.T) { //nolint:paralleltest // it measures the whole process
	w := setup(t)
	bucket := w.bucket()
	put(t, w.lease("orders/1001", 5), bucket, invoice, "warm")
	runtime.GC()
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	const size = 256 << 20
	z := &zeros{left: size, next: size}
	res, text := w.send(raw{creds: w.issue("orders/1001", 5), method: "PUT", path: "/orders/" + invoice, body: z, size: size})
	if res.StatusCode != http.StatusOK {
		t.Fatalf("got %d %s", res.StatusCode, text)
	}
	grown := int64(z.peak) - int64(before.HeapInuse)
	t.Logf("heap in use grew by %d KiB", grown>>10)
	if grown > 16<<20 {
		t.Errorf("heap in use grew by %d MiB", grown>>20)
	}
	out, err := w.root().GetObject(t.Context(), getInput(bucket, invoice))
	if err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(io.Discard, out.Body)
	if err := errors.Join(err, out.Body.Close()); err != nil || n != size {
		t.Errorf("read %d bytes back: %v", n, err)
	}
}
