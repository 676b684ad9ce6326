package objects

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"

	"github.com/fencegate/fencegate/gateway/blob"
)

// Answers are sent the cheapest way: from a file to a TCP connection inside the kernel, which [sequence.WriteTo] leaves
// to the connection.
var _ io.WriterTo = (*sequence)(nil)

// sequence reads pieces of blobs as one stream.
type sequence struct {
	store blob.Store
	base  context.Context //nolint:containedctx // outlives the request's handler
	open  io.ReadCloser
	left  int64 // bytes of the open piece
	rest  []piece
}

// next opens the next piece; io.EOF if there is none.
func (s *sequence) next() error {
	if len(s.rest) == 0 {
		if err := s.Close(); err != nil {
			return err
		}
		return io.EOF
	}
	p := s.rest[0]
	r, err := s.follow(p)
	if err != nil {
		return err
	}
	s.rest, s.open, s.left = s.rest[1:], r, p.length
	return nil
}

// follower is a store with a bound on its open readers. One that goes on with another blob keeps its place, because an
// answer that has begun can't be refused any more.
type follower interface {
	// Follow closes r, in any case, and opens the range in its place.
	Follow(ctx context.Context, r io.ReadCloser, id blob.ID, offset, length int64) (io.ReadCloser, error)
}

var _ follower = (*blob.S3)(nil)

// follow closes the open piece, if any, and opens p.
func (s *sequence) follow(p piece) (io.ReadCloser, error) {
	if store, can := s.store.(follower); can && s.open != nil {
		r := s.open
		s.open = nil
		return store.Follow(s.base, r, p.id, p.offset, p.length)
	}
	if err := s.Close(); err != nil {
		return nil, err
	}
	return s.store.Open(s.base, p.id, p.offset, p.length)
}

// Read implements [io.Reader].
func (s *sequence) Read(p []byte) (int, error) {
	for {
		if s.open == nil {
			return 0, io.EOF
		}
		n, err := s.open.Read(p)
		s.left -= int64(n)
		switch {
		case n > 0 && (err == nil || errors.Is(err, io.EOF)):
			return n, nil
		case err == nil:
			continue
		case !errors.Is(err, io.EOF):
			return n, err
		case s.left > 0:
			return n, io.ErrUnexpectedEOF
		}
		if err := s.next(); err != nil {
			return 0, err
		}
	}
}

// Close implements [io.Closer].
func (s *sequence) Close() error {
	if s.open == nil {
		return nil
	}
	r := s.open
	s.open = nil
	return r.Close()
}

// WriteTo implements [io.WriterTo].
func (s *sequence) WriteTo(w io.Writer) (written int64, err error) {
	for s.open != nil {
		n, err := io.Copy(w, s.open)
		written, s.left = written+n, s.left-n
		switch {
		case err != nil:
			return written, err
		case s.left > 0:
			return written, io.ErrUnexpectedEOF
		}
		if err := s.next(); err == io.EOF { //nolint:errorlint // next returns it bare
			return written, nil
		} else if err != nil {
			return written, err
		}
	}
	return written, nil
}

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
