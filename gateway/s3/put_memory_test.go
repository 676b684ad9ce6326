//go:build unix

package s3_test

import (
	"errors"
	"io"
	"net/http"
	"runtime"
	"testing"
)

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
