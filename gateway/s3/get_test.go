//go:build unix

package s3_test

import (
	"context"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/gateway/s3"
	"github.com/fencegate/fencegate/gateway/s3/credentials"
	"github.com/fencegate/fencegate/internal/testenv"
)

// inFolder keeps blobs in a folder, without the tests' spy.
func inFolder(t *testing.T) (folder string, o option) {
	t.Helper()
	folder = t.TempDir()
	d, err := blob.OpenDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	return folder, func(cfg *config) { cfg.Store = d }
}

// replica starts another gateway on the same database and store.
func (w *world) replica(o option) *world {
	w.t.Helper()
	cfg := config{
		Deps:    s3.Deps{Pool: testenv.PoolOf(w.t, w.pg.GatewayURL), Keys: w.keys},
		Options: s3.Options{RootAccessKey: rootAccess, RootSecretKey: rootSecret},
	}
	o(&cfg)
	srv, err := s3.New(cfg.Deps, cfg.Options)
	if err != nil {
		w.t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(ctx, ln) }()
	w.t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			w.t.Errorf("Serve: %v", err)
		}
	})
	return &world{t: w.t, keys: w.keys, srv: srv, addr: ln.Addr().String()}
}

// Concurrent reads share look-ups; none may see an outdated version.
func TestAReadSeesEveryAcknowledgedWriteOverTwoGateways(t *testing.T) {
	t.Parallel()
	_, folder := inFolder(t)
	one := setup(t, folder)
	bucket := one.bucket()
	two := one.replica(folder)
	one.arm("orders/1001", 5)
	const writers, writes = 4, 25
	var writing, reading sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	for _, w := range []*world{one, two} {
		for n := range 6 {
			c := w.holder("orders/1001", 5)
			reading.Go(func() {
				for ctx.Err() == nil {
					out, err := c.GetObject(t.Context(), getInput(bucket, fmt.Sprintf("1001/%d", n)))
					if err == nil {
						_ = out.Body.Close()
					}
				}
			})
		}
	}
	for n := range writers {
		key := fmt.Sprintf("1001/%d", n)
		from, to := []*world{one, two}[n%2].holder("orders/1001", 5), []*world{two, one}[n%2].holder("orders/1001", 5)
		writing.Go(func() {
			for i := range writes {
				data := strings.Repeat(fmt.Sprintf("%s is %d. ", key, i), 1+100*i)
				put(t, from, bucket, key, data)
				for _, c := range []*awss3.Client{to, from} {
					if got := get(t, c, bucket, key); got != data {
						t.Errorf("%s has %.30q after %.30q was written", key, got, data)
					}
				}
			}
		})
	}
	writing.Wait()
	stop()
	reading.Wait()
}

func TestBodiesOfEachSizeAndTheirRanges(t *testing.T) {
	t.Parallel()
	_, folder := inFolder(t)
	w := setup(t, folder)
	bucket := w.bucket()
	w.arm("orders/1001", 5)
	c := w.lease("orders/1001", 5)
	for _, size := range []int{0, 1, 4 << 10, 7 << 10, 64<<10 - 1, 64 << 10, 64<<10 + 1, 1 << 20} {
		data := strings.Repeat("0123456789abcdef-", size/17+1)[:size]
		key := fmt.Sprintf("1001/%d", size)
		put(t, c, bucket, key, data)
		for range 2 { // the buffer must not contain the previous read
			if got := get(t, c, bucket, key); got != data {
				t.Errorf("%d bytes: got %d others", size, len(got))
			}
		}
		for _, r := range [][2]int{{0, 0}, {size / 2, size - 1}, {size / 4, size - size/4 - 1}, {size - 1, size - 1}} {
			if size == 0 || r[0] > r[1] {
				continue
			}
			res, got := w.send(raw{creds: w.issue("orders/1001", 5), method: http.MethodGet, path: "/" + bucket + "/" + key, header: map[string]string{"Range": fmt.Sprintf("bytes=%d-%d", r[0], r[1])}})
			if res.StatusCode != http.StatusPartialContent || got != data[r[0]:r[1]+1] {
				t.Errorf("bytes %d-%d of %d: %d, %d bytes", r[0], r[1], size, res.StatusCode, len(got))
			}
		}
	}
}

// A client that resumes a download says of which version it has the beginning.
func TestADownloadResumesOnlyWithTheVersionThatItBegan(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	w.arm("orders/1001", 5)
	put(t, w.lease("orders/1001", 5), bucket, "1001/x", "0123456789")
	ask := func(method, held string) (*http.Response, string) {
		return w.send(raw{creds: w.issue("orders/1001", 5), method: method, path: "/" + bucket + "/1001/x", header: map[string]string{"Range": "bytes=4-", "If-Range": held}})
	}
	whole, _ := ask(http.MethodGet, "another")
	etag, date := whole.Header.Get("Etag"), whole.Header.Get("Last-Modified")
	for held, resumes := range map[string]bool{
		etag: true, date: true, "W/" + etag: false, `"x"`: false, strings.Trim(etag, `"`): false, "Sat, 01 Jan 2000 00:00:00 GMT": false, "Fri, 01 Jan 2100 00:00:00 GMT": false,
	} {
		status, data, length := http.StatusOK, "0123456789", int64(10)
		if resumes {
			status, data, length = http.StatusPartialContent, "456789", 6
		}
		if res, got := ask(http.MethodGet, held); res.StatusCode != status || got != data || (res.Header.Get("Content-Range") != "") != resumes {
			t.Errorf("GET with If-Range %s: %d %q %v", held, res.StatusCode, got, res.Header)
		}
		if res, _ := ask(http.MethodHead, held); res.StatusCode != status || res.ContentLength != length {
			t.Errorf("HEAD with If-Range %s: %d, %d bytes", held, res.StatusCode, res.ContentLength)
		}
	}
}

func TestWhatIsNotThereIsTold(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	for path, code := range map[string]string{"/" + bucket + "/1001/x": "NoSuchKey", "/absent/1001/x": "NoSuchBucket"} {
		res, got := w.send(raw{creds: w.issue("orders/1001", 5), method: http.MethodGet, path: path})
		if res.StatusCode != http.StatusNotFound || !strings.Contains(got, "<Code>"+code+"</Code>") {
			t.Errorf("%s: %d %.200s, want %s", path, res.StatusCode, got, code)
		}
	}
}

func TestATruncatedBlobIsNeverAnAnswer(t *testing.T) {
	t.Parallel()
	path, folder := inFolder(t)
	w := setup(t, folder)
	bucket := w.bucket()
	w.arm("orders/1001", 5)
	c := w.lease("orders/1001", 5)
	for _, size := range []int{4 << 10, 1 << 20} {
		put(t, c, bucket, "1001/x", strings.Repeat("x", size))
		cutShort(t, path, int64(size))
		res, got := w.send(raw{creds: w.issue("orders/1001", 5), method: http.MethodGet, path: "/" + bucket + "/1001/x"})
		if res.StatusCode != http.StatusInternalServerError {
			t.Errorf("%d bytes of which one is missing: %d, %.100s", size, res.StatusCode, got)
		}
	}
}

// cutShort truncates the files of a size by one byte.
func cutShort(t *testing.T, folder string, size int64) {
	t.Helper()
	n := 0
	err := filepath.WalkDir(folder, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() || info.Size() != size {
			return err
		}
		n++
		return os.Truncate(path, size-1)
	})
	if err != nil || n == 0 {
		t.Fatalf("%d files of %d bytes were cut short, %v", n, size, err)
	}
}

// A look-up that begins before the signature is verified must not stay behind, nor answer another request.
func TestAReadWithAnotherSignatureLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	w.arm("orders/1001", 5)
	put(t, w.lease("orders/1001", 5), bucket, "1001/x", "data")
	good := w.issue("orders/1001", 5)
	forged := good
	forged.SecretAccessKey = "another"
	unknown := good
	unknown.AccessKeyID = "ASIAAAAAAAAAAAAAAAAA"
	var all sync.WaitGroup
	for i := range 60 {
		creds, want := []credentials.Credentials{good, forged, unknown}[i%3], []int{http.StatusOK, http.StatusForbidden, http.StatusBadRequest}[i%3]
		method := []string{http.MethodGet, http.MethodHead}[i%2]
		all.Go(func() {
			res, got := w.send(raw{creds: creds, method: method, path: "/" + bucket + "/1001/x"})
			if res.StatusCode != want || want != http.StatusOK && strings.Contains(got, "data") {
				t.Errorf("got %d %.200s, want %d", res.StatusCode, got, want)
			}
		})
	}
	all.Wait()
	if got := get(t, w.lease("orders/1001", 5), bucket, "1001/x"); got != "data" {
		t.Errorf("got %q", got)
	}
}
