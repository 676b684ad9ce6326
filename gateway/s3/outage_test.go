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
