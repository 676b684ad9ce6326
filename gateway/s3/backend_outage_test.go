//go:build unix

package s3_test

import (
	"context"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/jackc/pgx/v5/pgxpool"
)

// An operation that cannot be repeated is not reported as failed if its answer was lost.
func TestALostAnswerOfARemovalIsResolved(t *testing.T) {
	t.Parallel()
	f := &faulty{}
	w := setup(t, throughFaulty(t, f))
	bucket := w.bucket()
	m := begin(t, w.lease("orders/1001", 5), bucket, "")
	f.strike("abort_multipart", false, loseReply)
	_, err := m.c.AbortMultipartUpload(t.Context(), &awss3.AbortMultipartUploadInput{Bucket: &bucket, Key: aws.String(invoice), UploadId: m.id})
	if err != nil {
		t.Errorf("abort: %v", err)
	}
	_, err = m.c.AbortMultipartUpload(t.Context(), &awss3.AbortMultipartUploadInput{Bucket: &bucket, Key: aws.String(invoice), UploadId: m.id})
	wantRefused(t, err, 404, "NoSuchUpload")
	f.strike("delete_bucket", false, loseReply)
	if _, err := w.root().DeleteBucket(t.Context(), &awss3.DeleteBucketInput{Bucket: &bucket}); err != nil {
		t.Errorf("delete: %v", err)
	}
	_, err = w.root().DeleteBucket(t.Context(), &awss3.DeleteBucketInput{Bucket: &bucket})
	wantRefused(t, err, 404, "NoSuchBucket")
	f.strike("create_bucket", false, loseReply)
	if _, err := w.root().CreateBucket(t.Context(), &awss3.CreateBucketInput{Bucket: &bucket}); err != nil {
		t.Errorf("create: %v", err)
	}
}

func TestAnAnswerToARepetitionSpeaksOfThisAttemptAlone(t *testing.T) {
	t.Parallel()
	f := &faulty{}
	w := setup(t, throughFaulty(t, f))
	w.bucket()
	w.arm("orders/1001", 5)
	f.setDown(true)
	const document = "<Delete><Object><Key>" + invoice + "</Key></Object></Delete>"
	object := "/orders/" + invoice
	for _, c := range []struct {
		raw
		attempt string
		maybe   bool // an earlier attempt may have changed something
	}{
		{raw{method: "PUT", path: object, body: body("x"), size: 1}, "attempt=1; max=3", false},
		{raw{method: "PUT", path: object, body: body("x"), size: 1}, "attempt=2; max=3", true},
		{raw{method: "PUT", path: object, body: body("x"), size: 1}, "ttl=20261128T010203Z; attempt=10; max=12", true},
		{raw{method: "PUT", path: object, body: body("x"), size: 1}, "", true},
		{raw{method: "PUT", path: object, body: body("x"), size: 1, invocation: none}, "attempt=2; max=3", false},
		{raw{method: "DELETE", path: object}, "attempt=2", true},
		{raw{method: "POST", path: "/orders?delete=", body: body(document), size: int64(len(document)), header: map[string]string{"Content-MD5": md5Of(document)}}, "attempt=2", true},
		{raw{method: "GET", path: object}, "attempt=2; max=3", false},
	} {
		c.creds = w.issue("orders/1001", 5)
		if c.attempt != "" {
			c.unsigned = map[string]string{"Amz-Sdk-Request": c.attempt}
		}
		res, text := w.send(c.raw)
		maybe := strings.Contains(text, "an earlier attempt of the same request may have")
		if res.StatusCode != http.StatusServiceUnavailable || maybe != c.maybe || strings.Contains(text, "Nothing was changed") == c.maybe {
			t.Errorf("%s %s, %q: got %d %s", c.method, c.path, c.attempt, res.StatusCode, text)
		}
	}
}

// counted counts the open connections.
type counted struct {
	net.Conn

	open   *atomic.Int32
	closed atomic.Bool
}

func (c *counted) Close() error {
	if c.closed.CompareAndSwap(false, true) {
		c.open.Add(-1)
	}
	return c.Conn.Close()
}

func TestAStuckDatabaseIsNotFloodedWithConnections(t *testing.T) {
	t.Parallel()
	const requests = 40
	var open, most atomic.Int32
	w := setup(t, func(cfg *config) {
		config := cfg.Pool.Config()
		config.MaxConns = 2
		config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			var d net.Dialer
			c, err := d.DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			now := open.Add(1)
			for seen := most.Load(); now > seen && !most.CompareAndSwap(seen, now); seen = most.Load() {
			}
			return &counted{Conn: c, open: &open}, nil
		}
		pool, err := pgxpool.NewWithConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		cfg.Pool, cfg.DatabaseTimeout = pool, 3*time.Second
	})
	w.bucket()
	w.arm("orders/1001", 5)
	tx, err := w.admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), "LOCK TABLE objects.blobs"); err != nil {
		t.Fatal(err)
	}
	done := make([]<-chan answer, requests)
	for i := range done {
		done[i] = w.async(w.putRaw(5, "", "data"))
	}
	for _, d := range done {
		if a := <-d; a.status != 503 {
			t.Errorf("got %+v", a)
		}
	}
	// Two of the pool, two outside it, and those that cancel statements. On a busy machine those of one turn last into the next.
	if n := most.Load(); n > requests/2 {
		t.Errorf("%d connections were open at a time", n)
	}
}

const commitSQL = "objects.commit_put"

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
