//go:build unix

package blob_test

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/internal/testenv/s3posix"
)

func TestAReadBeyondTheConnectionsIsToldThatTheyAreInUse(t *testing.T) {
	t.Parallel()
	const size = 8 << 20 // more than the socket buffers hold
	s := openS3(t, s3posix.Start(t).URL(), func(c *blob.S3Config) { c.Connections, c.Stall = 1, 30*time.Second })
	id := blob.NewID()
	if err := s.Put(t.Context(), id, bytes.NewReader(make([]byte, size)), size); err != nil {
		t.Fatal(err)
	}
	slow, err := s.Open(t.Context(), id, 0, size)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Open(t.Context(), id, 0, size); !errors.Is(err, blob.ErrBusy) {
		t.Errorf("beside a slow reader: %v", err)
	}
	if n, err := io.Copy(io.Discard, slow); n != size || err != nil {
		t.Errorf("the slow reader got %d bytes, %v", n, err)
	}
	for range 2 { // a place is given up once
		if err := slow.Close(); err != nil {
			t.Error(err)
		}
	}
	for range 3 {
		r, err := s.Open(t.Context(), id, 5, 10)
		if err == nil {
			err = r.Close()
		}
		if _, failed := s.Open(t.Context(), id, size, 10); !errors.Is(failed, blob.ErrSize) {
			t.Errorf("beyond the end: %v", failed)
		}
		if err != nil {
			t.Errorf("after it: %v", err)
		}
	}
}
