package s3

import (
	"context"
	"errors"
	"io"

	"github.com/fencegate/fencegate/gateway/blob"
)

// read opens a version's bytes. The first blob is opened at once, so that its
// absence is found before the response begins; the others one after the other.
func (b *backend) read(v version, offset, length int64) (io.ReadCloser, error) {
	s := &sequence{store: b.cfg.Store, base: b.base}
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
		return b.load(from, s.rest[0])
	}
	if err := s.next(); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return s, nil
}

// sequence reads pieces of blobs as one.
type sequence struct {
	store blob.Store
	base  context.Context //nolint:containedctx // outlives the request's handler
	open  io.ReadCloser
	left  int64 // bytes of the open piece
	rest  []piece
}

type piece struct {
	id             blob.ID
	offset, length int64
}

// next opens the next piece; io.EOF where there is none.
func (s *sequence) next() error {
	if err := s.Close(); err != nil {
		return err
	}
	if len(s.rest) == 0 {
		return io.EOF
	}
	p := s.rest[0]
	r, err := s.store.Open(s.base, p.id, p.offset, p.length)
	if err != nil {
		return err
	}
	s.rest, s.open, s.left = s.rest[1:], r, p.length
	return nil
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
