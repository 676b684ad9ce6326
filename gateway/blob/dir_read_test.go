//go:build unix

package blob_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/fencegate/fencegate/gateway/blob"
)

func TestReadingAtOnceIsAsOpenAndRead(t *testing.T) {
	t.Parallel()
	d, err := blob.OpenDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	id, data := blob.NewID(), "0123456789"
	if err := d.Put(t.Context(), id, strings.NewReader(data), int64(len(data))); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		offset, length int
		err            error
	}{{0, 10, nil}, {3, 4, nil}, {9, 1, nil}, {10, 0, nil}, {0, 0, nil}, {0, 11, blob.ErrSize}, {9, 2, blob.ErrSize}, {11, 1, blob.ErrSize}} {
		p := make([]byte, c.length)
		switch err := d.ReadAt(t.Context(), id, int64(c.offset), p); {
		case !errors.Is(err, c.err):
			t.Errorf("%d+%d: %v, want %v", c.offset, c.length, err, c.err)
		case err == nil && string(p) != data[c.offset:c.offset+c.length]:
			t.Errorf("%d+%d: %q", c.offset, c.length, p)
		}
	}
	absent := blob.NewID()
	if err := d.ReadAt(t.Context(), absent, 0, make([]byte, 1)); !errors.Is(err, blob.ErrNotFound) || !strings.Contains(err.Error(), absent.String()) {
		t.Errorf("a blob that is not there: %v", err)
	}
}
