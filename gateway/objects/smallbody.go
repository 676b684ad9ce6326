package objects

import (
	"bytes"
	"context"
	"io"
	"sync"

	"github.com/fencegate/fencegate/gateway/blob"
)

// A small body is read before the response begins, and sent with the headers: that costs less than opening and sending
// a file, and an error of the blob is found before the status is sent.

const smallBody = 64 << 10 // bytes

// wholeReader is a store that can read a range in one call.
type wholeReader interface {
	ReadAt(ctx context.Context, id blob.ID, offset int64, p []byte) error
}

var smallBodies = sync.Pool{New: func() any { b := make([]byte, smallBody); return &b }}

// loaded is a body in memory.
type loaded struct {
	bytes.Reader

	buf *[]byte // nil: closed
}

// load reads a small piece into memory.
func load(ctx context.Context, from wholeReader, p piece) (io.ReadCloser, error) {
	buf := smallBodies.Get().(*[]byte)
	data := (*buf)[:p.length]
	if err := from.ReadAt(ctx, p.id, p.offset, data); err != nil {
		smallBodies.Put(buf)
		return nil, err
	}
	l := &loaded{buf: buf}
	l.Reset(data)
	return l, nil
}

// Close implements [io.Closer]. Nothing may be read afterwards.
func (l *loaded) Close() error {
	if l.buf != nil {
		l.Reset(nil)
		smallBodies.Put(l.buf)
		l.buf = nil
	}
	return nil
}

type piece struct {
	id             blob.ID
	offset, length int64
}
