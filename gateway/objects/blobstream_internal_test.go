//go:build unix

package objects

import (
	"bytes"
	"context"
	"io"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/internal/testenv/s3posix"
)

// Another reader waits for the only connection, and would keep it.
func TestAReadKeepsItsConnectionFromPartToPart(t *testing.T) {
	t.Parallel()
	const parts, size = 20, 10
	store, err := blob.OpenS3(t.Context(), blob.S3Config{
		Bucket: s3posix.Bucket, Prefix: "parts", Endpoint: s3posix.Start(t).URL(), Region: "us-east-1", PathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider(s3posix.Access, s3posix.Secret, ""),
		Connections: 1, Stall: 30 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	var v Stored
	for range parts {
		id := blob.NewID()
		if err := store.Put(t.Context(), id, bytes.NewReader(make([]byte, size)), size); err != nil {
			t.Fatal(err)
		}
		v.Blobs, v.BlobSizes = append(v.Blobs, id), append(v.BlobSizes, size)
	}
	reader := &Reader{store: store}
	r, err := reader.Open(t.Context(), v, 5, parts*size-7)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	other := make(chan io.ReadCloser, 1)
	go func() {
		for ctx.Err() == nil {
			if got, err := store.Open(ctx, v.Blobs[0], 0, size); err == nil {
				other <- got
				return
			}
		}
		close(other)
	}()
	if n, err := io.Copy(io.Discard, r); n != parts*size-7 || err != nil {
		t.Errorf("%d bytes are read, %v", n, err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	stop()
	if got := <-other; got != nil {
		_ = got.Close()
	}
}
