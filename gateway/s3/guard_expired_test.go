//go:build unix

package s3_test

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/s3"
	"github.com/fencegate/fencegate/gateway/s3/credentials"
)

// lapsed returns credentials of orders/1001 with token 5 that expired a while ago.
func (w *world) lapsed(ago time.Duration) credentials.Credentials {
	w.t.Helper()
	creds, err := w.keys.Issue("orders/1001", 5, time.Now().Add(-ago), 0)
	if err != nil {
		w.t.Fatal(err)
	}
	return creds
}

// A client whose answer was lost asks again after its lease, when its refreshing credentials have expired. It learns what
// it did before; the same credentials do nothing else.
func TestExpiredCredentialsAreToldWhatWasDone(t *testing.T) {
	t.Parallel()
	ends := map[string]func(*world){"current": func(*world) {}}
	maps.Copy(ends, over)
	for end, finish := range ends {
		all := maps.Clone(repetitions)
		all["PutObject, empty"] = repeated{status: 200, request: func(w *world, _ string) raw { return w.of("PUT", invoice, "", nil) }}
		for name, c := range all {
			if strings.Contains(name, "root") {
				continue
			}
			t.Run(name+", "+end, func(t *testing.T) {
				t.Parallel()
				w := setup(t)
				bucket := w.keeping(objects.Keep{All: true})
				w.arm("orders/1001", 5)
				r := c.request(w, bucket)
				data := new(bytes.Buffer)
				if _, err := data.ReadFrom(r.body); err != nil {
					t.Fatal(err)
				}
				first, text := w.again(r, data.Bytes())
				if first.StatusCode != c.status || strings.Contains(text, "<Error>") {
					t.Fatalf("first: got %d %s", first.StatusCode, text)
				}
				if c.before != nil {
					c.before(w, bucket)
				}
				finish(w)
				const rows = "SELECT (SELECT count(*) FROM objects.versions) * 1000 + (SELECT count(*) FROM objects.pointers)"
				before := w.count(rows)
				r.creds = w.lapsed(time.Second)
				second, said := w.again(r, data.Bytes())
				if second.StatusCode != c.status || strings.Contains(said, "<Error>") || second.Header.Get("Etag") != first.Header.Get("Etag") ||
					second.Header.Get("Fencing-Stage") != first.Header.Get("Fencing-Stage") {
					t.Errorf("again: got %d %s", second.StatusCode, said)
				}
				r.creds = w.lapsed(13 * time.Hour)
				if late, said := w.again(r, data.Bytes()); late.StatusCode != http.StatusBadRequest || !strings.Contains(said, "ExpiredToken") {
					t.Errorf("half a day later: got %d %s", late.StatusCode, said)
				}
				r.creds, r.invocation = w.lapsed(time.Second), "another request"
				idempotent := strings.HasPrefix(name, "DeleteObject of a version") || strings.HasPrefix(name, "CompleteMultipartUpload")
				other, said := w.again(r, data.Bytes())
				refused := strings.Contains(said, "ExpiredToken") || end == "superseded" && strings.Contains(said, "StaleFencingToken")
				if !idempotent && !refused {
					t.Errorf("another request: got %d %s", other.StatusCode, said)
				}
				if n := w.count(rows); n != before {
					t.Errorf("%d versions and objects, before it was repeated %d", n, before)
				}
			})
		}
	}
}

// Expired credentials of a grant that is still current write nothing under any rule, and read nothing.
func TestExpiredCredentialsDoNothing(t *testing.T) {
	t.Parallel()
	for name, rule := range map[string]objects.Rule{"lease": objects.PrefixRule(1), "none": objects.NoRule(), "monotone": objects.PrefixRule(1).Monotone()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			if _, err := w.srv.Catalog().EnsureBucket(t.Context(), "orders", rule); err != nil {
				t.Fatal(err)
			}
			if name != "monotone" {
				w.arm("orders/1001", 5)
			}
			for _, method := range []string{"PUT", "DELETE", "GET", "HEAD"} {
				for _, size := range []int{0, 3, 1 << 17} {
					data := strings.Repeat("x", size)
					r := w.of(method, invoice, data, nil)
					r.creds = w.lapsed(time.Second)
					if method != "PUT" {
						r.body, r.size = nil, 0
					}
					if res, text := w.send(r); res.StatusCode != http.StatusBadRequest || method != "HEAD" && !strings.Contains(text, "ExpiredToken") {
						t.Errorf("%s of %d bytes: got %d %s", method, size, res.StatusCode, text)
					}
				}
			}
			const rows = "SELECT (SELECT count(*) FROM objects.versions) + (SELECT count(*) FROM objects.blobs WHERE state <> 'pending')"
			if n := w.count(rows); n != 0 {
				t.Errorf("%d versions and blobs of refused ones", n)
			}
			if _, err := w.srv.Catalog().EnsureBucket(t.Context(), "sources", objects.NoRule()); err != nil {
				t.Fatal(err)
			}
			put(t, w.root(), "sources", "source", "data")
			before, stored := w.count(rows), w.store.fills.Load()+w.store.puts.Load()
			r := w.of("PUT", invoice, "", map[string]string{"X-Amz-Copy-Source": "/sources/source"})
			r.creds = w.lapsed(time.Second)
			if res, text := w.send(r); res.StatusCode != http.StatusBadRequest || !strings.Contains(text, "ExpiredToken") {
				t.Errorf("a copy: got %d %s", res.StatusCode, text)
			}
			if n, bodies := w.count(rows)-before, w.store.fills.Load()+w.store.puts.Load()-stored; n != 0 || bodies != 0 {
				t.Errorf("a refused copy left %d versions and blobs, and stored %d bodies", n, bodies)
			}
		})
	}
}

// leases answers for the lock.
type leases struct {
	remaining, current func() (time.Duration, error)
}

func (l *leases) Remaining(context.Context, string, fence.Token) (time.Duration, error) {
	return l.remaining()
}

func (l *leases) Current(context.Context, string, fence.Token) (time.Duration, error) {
	return l.current()
}

// The first attempt is still in progress when the lease runs out, and nobody acquires the resource. If the second attempt
// gets ExpiredToken, the first one must not commit.
func TestAnAttemptInProgressEndsBeforeExpiredCredentialsAreRefused(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("x", 1<<17)
	for name, request := range map[string]func(*world) raw{
		"PutObject": func(w *world) raw { return w.of("PUT", invoice, large, nil) },
		"CopyObject": func(w *world) raw {
			return w.of("PUT", invoice, "", map[string]string{"X-Amz-Copy-Source": "/orders/1001/source"})
		},
		"UploadPart": func(w *world) raw {
			m := begin(w.t, w.holder("orders/1001", 5), "orders", "")
			return w.of("PUT", invoice+"?partNumber=1&uploadId="+*m.id, large, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := new(leases)
			w := setup(t, func(c *config) { c.Leases = l })
			l.remaining = func() (time.Duration, error) {
				over["released"](w)
				return 0, nil
			}
			bucket := w.bucket()
			put(t, w.lease("orders/1001", 5), bucket, "1001/source", large)
			r := request(w)
			w.store.puts.Store(0)
			release := w.store.hold()
			defer release()
			first := w.async(r)
			w.begun(1)
			r.creds = w.lapsed(time.Second)
			if res, text := w.again(r, []byte(large)[:r.size]); res.StatusCode != http.StatusBadRequest || !strings.Contains(text, "ExpiredToken") {
				t.Errorf("again: got %d %s", res.StatusCode, text)
			}
			release()
			if a := <-first; a.status != http.StatusPreconditionFailed {
				t.Errorf("the first attempt: got %+v", a)
			}
			if n := w.count("SELECT (SELECT count(*) FROM objects.versions) + (SELECT count(*) FROM objects.parts)"); n != 1 {
				t.Errorf("%d versions and parts, want the source", n)
			}
		})
	}
}

// While the lock can't be asked, an attempt in progress may still take effect. What was done is answered.
func TestExpiredCredentialsAreNotRefusedWhileTheLockIsAway(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{"lock": fmt.Errorf("%w: no quorum", s3.ErrLockAway), "fence": context.DeadlineExceeded} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t, func(c *config) {
				c.Leases = &leases{remaining: func() (time.Duration, error) { return 0, err }}
			})
			w.bucket()
			w.arm("orders/1001", 5)
			r := w.of("PUT", invoice, "new", nil)
			if res, text := w.again(r, []byte("new")); res.StatusCode != http.StatusOK {
				t.Fatalf("first: got %d %s", res.StatusCode, text)
			}
			r.creds = w.lapsed(time.Second)
			if res, text := w.again(r, []byte("new")); res.StatusCode != http.StatusOK {
				t.Errorf("again: got %d %s", res.StatusCode, text)
			}
			r.invocation = "another request"
			if res, text := w.again(r, []byte("new")); res.StatusCode != http.StatusServiceUnavailable {
				t.Errorf("another request: got %d %s", res.StatusCode, text)
			}
		})
	}
}
