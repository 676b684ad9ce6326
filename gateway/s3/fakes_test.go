//go:build unix

package s3_test

import (
	"context"
	"io"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencegate/fencegate/gateway/blob"
)

// spy is a blob store with injected failures.
type spy struct {
	blob.Store

	putErr    error
	openErr   atomic.Pointer[error]
	deleteErr atomic.Pointer[error]
	puts      atomic.Int32                  // blobs announced by their upload
	fills     atomic.Int32                  // reserved blobs
	gate      atomic.Pointer[chan struct{}] // a Put waits until this is closed
	trickles  atomic.Bool                   // a Put takes a byte each millisecond
}

// hold makes each Put wait, until release is called.
func (s *spy) hold() (release func()) {
	held := make(chan struct{})
	s.gate.Store(&held)
	return sync.OnceFunc(func() {
		s.gate.Store(nil)
		close(held)
	})
}

// trickle takes a body so slowly that only its error ends it.
func trickle(r io.Reader) error {
	for {
		if _, err := r.Read(make([]byte, 1)); err != nil {
			return err
		}
		<-time.After(time.Millisecond)
	}
}

func (s *spy) Delete(ctx context.Context, id blob.ID) error {
	if err := s.deleteErr.Load(); err != nil {
		return *err
	}
	return s.Store.Delete(ctx, id)
}

func (s *spy) Open(ctx context.Context, id blob.ID, offset, length int64) (io.ReadCloser, error) {
	if err := s.openErr.Load(); err != nil {
		return nil, *err
	}
	return s.Store.Open(ctx, id, offset, length)
}

func (s *spy) Put(ctx context.Context, id blob.ID, r io.Reader, size int64) error {
	s.puts.Add(1)
	if held := s.gate.Load(); held != nil {
		<-*held
	}
	if s.trickles.Load() {
		return trickle(r)
	}
	if s.putErr != nil {
		return s.putErr
	}
	return s.Store.Put(ctx, id, r, size)
}

// folder is what the server uses of a [blob.Dir] and of no other store.
type folder interface {
	blob.Reserver
	ReadAt(ctx context.Context, id blob.ID, offset int64, p []byte) error
	Unfinished(ctx context.Context) iter.Seq2[blob.Info, error]
}

var _ folder = (*blob.Dir)(nil)

// folderSpy is a spy in front of a folder, so that the server acts as without a spy.
type folderSpy struct{ *spy }

func (s folderSpy) Reserve(ctx context.Context, ids []blob.ID) error {
	return s.Store.(folder).Reserve(ctx, ids)
}

func (s folderSpy) Fill(ctx context.Context, id blob.ID, r io.Reader, size int64) error {
	s.fills.Add(1)
	if s.putErr != nil {
		return s.putErr
	}
	return s.Store.(folder).Fill(ctx, id, r, size)
}

func (s folderSpy) ReadAt(ctx context.Context, id blob.ID, offset int64, p []byte) error {
	return s.Store.(folder).ReadAt(ctx, id, offset, p)
}

func (s folderSpy) Unfinished(ctx context.Context) iter.Seq2[blob.Info, error] {
	return s.Store.(folder).Unfinished(ctx)
}
