package blob

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"
)

// Open implements [Store].
func (s *S3) Open(ctx context.Context, id ID, offset, length int64) (io.ReadCloser, error) {
	if offset < 0 || length < 0 {
		return nil, fmt.Errorf("open blob %s: %w: bytes %d+%d", id, ErrSize, offset, length)
	}
	if length == 0 { // no range expresses that
		size, err := s.Size(ctx, id)
		if err == nil && offset > size {
			err = fmt.Errorf("open blob %s: %w: bytes %d+0 of %d", id, ErrSize, offset, size)
		}
		if err != nil {
			return nil, err
		}
		return http.NoBody, nil
	}
	if err := s.enter(ctx); err != nil {
		return nil, fmt.Errorf("open blob %s: %w", id, err)
	}
	return s.openWith(ctx, id, offset, length, sync.OnceFunc(s.leave))
}

// Follow is [S3.Open] for a reader that goes on with another blob: it closes r, and the new reader has r's place. A
// reader that had to wait for a new one could be refused in the middle of what it reads.
func (s *S3) Follow(ctx context.Context, r io.ReadCloser, id ID, offset, length int64) (io.ReadCloser, error) {
	d, ours := r.(*download)
	if !ours || offset < 0 || length <= 0 {
		if err := r.Close(); err != nil {
			return nil, err
		}
		return s.Open(ctx, id, offset, length)
	}
	leave := d.leave
	d.leave = func() {}
	if err := d.Close(); err != nil {
		leave()
		return nil, err
	}
	return s.openWith(ctx, id, offset, length, leave)
}

// openWith opens a reader that has a place, which leave gives up.
func (s *S3) openWith(ctx context.Context, id ID, offset, length int64, leave func()) (io.ReadCloser, error) {
	d, err := s.open(ctx, s.key(id), offset, length)
	if err == nil {
		d.leave = leave
		return d, nil
	}
	leave()
	if status(err) == http.StatusRequestedRangeNotSatisfiable {
		return nil, fmt.Errorf("open blob %s: %w: bytes %d+%d", id, ErrSize, offset, length)
	}
	return nil, absent(id, err)
}

// maxWait is how long a read waits for its place: slow readers keep theirs for long.
const maxWait = 5 * time.Second

// enter waits for a place among the open reads, so that a request's connection is free when its stall timeout begins.
func (s *S3) enter(ctx context.Context) error {
	timer := time.NewTimer(min(maxWait, s.stall))
	defer timer.Stop()
	select {
	case s.places <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return ErrBusy
	}
}

func (s *S3) leave() { <-s.places }

// open requests a range. The context bounds only the opening.
func (s *S3) open(ctx context.Context, key *string, offset, length int64) (*download, error) {
	reading, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	watch := newWatch(s.stall, cancel)
	wanted := fmt.Sprintf("bytes=%d-%d", offset, offset+length-1)
	out, err := s.reads.GetObject(reading, &s3.GetObjectInput{Bucket: &s.bucket, Key: key, Range: &wanted})
	watch.rest()
	if !stop() && err == nil {
		_ = out.Body.Close()
		err = ctx.Err()
	}
	if err != nil {
		if reading.Err() != nil {
			err = errors.Join(context.Cause(reading), err)
		}
		cancel(errOver)
		return nil, err
	}
	d := &download{body: out.Body, left: length, ctx: reading, cancel: cancel, watch: watch, leave: func() {}}
	begin := fmt.Sprintf("bytes %d-", offset)
	switch {
	case out.ContentLength == nil || *out.ContentLength != length:
		err = fmt.Errorf("%w: bytes %d+%d", ErrSize, offset, length)
	case out.ContentRange != nil && !strings.HasPrefix(*out.ContentRange, begin), out.ContentRange == nil && offset > 0:
		err = errors.New("the S3 service returned another range than was requested")
	}
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// Size implements [Store].
func (s *S3) Size(ctx context.Context, id ID) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	out, err := s.rest.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &s.bucket, Key: s.key(id)})
	switch {
	case err != nil:
		return 0, absent(id, err)
	case out.ContentLength == nil:
		return 0, fmt.Errorf("blob %s: the S3 service does not say its size", id)
	}
	return *out.ContentLength, nil
}

// Delete implements [Store].
func (s *S3) Delete(ctx context.Context, id ID) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	_, err := s.rest.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &s.bucket, Key: s.key(id)})
	if err != nil && !errors.Is(absent(id, err), ErrNotFound) {
		return fmt.Errorf("delete blob %s: %w", id, err)
	}
	return nil
}

// All implements [Store], in pages of at most 1,000. It skips objects that are not blobs.
func (s *S3) All(ctx context.Context) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		var token *string
		for {
			page, err := s.page(ctx, token)
			if err != nil {
				yield(Info{}, fmt.Errorf("list blobs: %w", err))
				return
			}
			for _, o := range page.Contents {
				info, ours := s.infoOf(o)
				if ours && !yield(info, nil) {
					return
				}
			}
			more := page.IsTruncated != nil && *page.IsTruncated
			switch {
			case !more:
				return
			case page.NextContinuationToken == nil || token != nil && *token == *page.NextContinuationToken:
				yield(Info{}, errors.New("list blobs: the S3 service reports more blobs, but no continuation token"))
				return
			}
			token = page.NextContinuationToken
		}
	}
}

func (s *S3) page(ctx context.Context, token *string) (*s3.ListObjectsV2Output, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	return s.rest.ListObjectsV2(ctx, &s3.ListObjectsV2Input{Bucket: &s.bucket, Prefix: &s.prefix, ContinuationToken: token})
}

func (s *S3) infoOf(o types.Object) (Info, bool) {
	if o.Key == nil || o.Size == nil || o.LastModified == nil {
		return Info{}, false
	}
	id, err := ParseID((*o.Key)[strings.LastIndexByte(*o.Key, '/')+1:])
	return Info{ID: id, Size: *o.Size, Changed: *o.LastModified}, err == nil && *s.key(id) == *o.Key
}

// Owner implements [Store].
func (s *S3) Owner(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	key := s.prefix + ownerName
	out, err := s.rest.GetObject(ctx, &s3.GetObjectInput{Bucket: &s.bucket, Key: &key})
	if err != nil {
		if errors.Is(absent(ID{}, err), ErrNotFound) {
			return "", nil
		}
		return "", fmt.Errorf("read the owner mark of the blob store: %w", err)
	}
	mark, err := io.ReadAll(io.LimitReader(out.Body, maxOwner))
	if err = errors.Join(err, out.Body.Close()); err != nil {
		return "", fmt.Errorf("read the owner mark of the blob store: %w", err)
	}
	return string(mark), nil
}

// SetOwner implements [Store].
func (s *S3) SetOwner(ctx context.Context, mark string) error {
	key := s.prefix + ownerName
	if err := s.put(ctx, &key, bytes.NewReader([]byte(mark)), int64(len(mark))); err != nil {
		return fmt.Errorf("write the owner mark of the blob store: %w", err)
	}
	return nil
}

// absent distinguishes a missing object from a missing bucket, which must not count as missing blobs.
func absent(id ID, err error) error {
	api, isAPI := errors.AsType[smithy.APIError](err)
	if isAPI && status(err) == http.StatusNotFound && (api.ErrorCode() == "NoSuchKey" || api.ErrorCode() == "NotFound") {
		return fmt.Errorf("%w: %s", ErrNotFound, id)
	}
	return fmt.Errorf("blob %s: %w", id, err)
}

// status returns the HTTP status of a service's error; 0: there was none.
func status(err error) int {
	if answer, ok := errors.AsType[interface {
		error
		HTTPStatusCode() int
	}](err); ok {
		return answer.HTTPStatusCode()
	}
	return 0
}
