//go:build unix

package s3_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fencegate/fencegate/gateway/objects/maintenance"
	"github.com/fencegate/fencegate/internal/testenv"
)

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
	w := setup(t, func(c *config) { c.StallTimeout = 6 * time.Second })
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
