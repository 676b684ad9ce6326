package objects

import (
	"context"
	"errors"
	"io"

	"github.com/fencegate/fencegate/gateway/blob"
)

// Answers are sent the cheapest way: from a file to a TCP connection inside the kernel, which [sequence.WriteTo] leaves
// to the connection.
var _ io.WriterTo = (*sequence)(nil)

// Open opens a version's bytes for reading under ctx. It opens the first blob at once, so that a missing one is found
// before the response begins, and the others one after the other.
func (r *Reader) Open(ctx context.Context, v Stored, offset, length int64) (io.ReadCloser, error) {
	s := &sequence{store: r.store, base: ctx}
	for i, size := range v.BlobSizes {
		if offset >= size || length == 0 {
			offset = max(offset-size, 0)
			continue
		}
		n := min(size-offset, length)
		s.rest = append(s.rest, piece{id: v.Blobs[i], offset: offset, length: n})
		offset, length = 0, length-n
	}
	if from, can := s.store.(wholeReader); can && len(s.rest) == 1 && s.rest[0].length <= smallBody {
		return load(ctx, from, s.rest[0])
	}
	if err := s.next(); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return s, nil
}

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
