//go:build unix

package blob_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"testing"

	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/internal/testenv/s3posix"
)

func TestAPutWhoseOutcomeIsNotKnownIsNoSuccessAndIsTriedOnce(t *testing.T) {
	t.Parallel()
	f := s3posix.StartFlaky(t)
	s := openS3(t, f.URL)
	data := bytes.Repeat([]byte("x"), 8<<20)
	for name, fault := range map[string]http.HandlerFunc{
		"500": s3posix.Answer(500),
		"503": s3posix.Answer(503),
		"403": s3posix.Answer(403),
		"a redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		},
		"early 200":   func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) },
		"cut at once": s3posix.Cut,
		"cut in the middle": func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.CopyN(io.Discard, r.Body, 1000)
			s3posix.Cut(w, r)
		},
		"done, the answer lost": f.Lose,
	} {
		f.Break(fault)
		id := blob.NewID()
		body := bytes.NewReader(data)
		err := s.Put(t.Context(), id, onlyReader{body}, int64(len(data)))
		if err == nil {
			t.Errorf("%s: Put succeeded", name)
		}
		if n := f.Met(); n != 1 {
			t.Errorf("%s: sent %d times", name, n)
		}
		f.Repair()
		if err := s.Delete(t.Context(), id); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := s.Size(t.Context(), id); !errors.Is(err, blob.ErrNotFound) {
			t.Errorf("%s: after its deletion: %v", name, err)
		}
	}
}

// onlyReader hides the reader's other methods: the SDK could rewind it.
type onlyReader struct{ io.Reader }

func TestTheServiceSeesThatBytesWereChangedOnTheirWay(t *testing.T) {
	t.Parallel()
	f := s3posix.StartFlaky(t)
	s := openS3(t, f.URL)
	f.Break(func(w http.ResponseWriter, r *http.Request) {
		r.Body = &flipped{ReadCloser: r.Body, at: 5000}
		f.Pass(w, r)
	})
	id := blob.NewID()
	if err := s.Put(t.Context(), id, bytes.NewReader(make([]byte, 10_000)), 10_000); err == nil {
		t.Error("Put succeeded")
	}
	f.Repair()
	if _, err := s.Size(t.Context(), id); !errors.Is(err, blob.ErrNotFound) {
		t.Errorf("the changed bytes are stored: %v", err)
	}
}

// flipped changes one byte.
type flipped struct {
	io.ReadCloser

	at int
}

func (r *flipped) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	if r.at >= 0 && r.at < n {
		p[r.at] ^= 1
	}
	r.at -= n
	return n, err
}

func TestAReaderThatIsCutNeverEndsEarlyWithoutAnError(t *testing.T) {
	t.Parallel()
	f := s3posix.StartFlaky(t)
	s := openS3(t, f.URL)
	id := blob.NewID()
	data := bytes.Repeat([]byte("0123456789"), 100_000)
	if err := s.Put(t.Context(), id, bytes.NewReader(data), int64(len(data))); err != nil {
		t.Fatal(err)
	}
	for name, fault := range map[string]http.HandlerFunc{
		"cut": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "1000000")
			w.Header().Set("Content-Range", "bytes 0-999999/1000000")
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write(data[:300_000])
			s3posix.Cut(w, r)
		},
		"less than asked for": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "300000")
			w.Header().Set("Content-Range", "bytes 0-299999/300000")
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write(data[:300_000])
		},
		"no length": func(w http.ResponseWriter, _ *http.Request) { w.(http.Flusher).Flush(); _, _ = w.Write(data[:300_000]) },
		"other bytes": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000000")
			w.Header().Set("Content-Range", "bytes 5-1000004/2000000")
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write(data)
		},
		"500":        s3posix.Answer(500),
		"a bare 404": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "what?", http.StatusNotFound) },
	} {
		f.Break(fault)
		r, err := s.Open(t.Context(), id, 0, int64(len(data)))
		if err == nil {
			_, err = io.ReadAll(r)
			err = errors.Join(err, r.Close())
		}
		if err == nil || errors.Is(err, blob.ErrNotFound) && name != "a bare 404" {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestWhatChangesNothingIsTriedAgain(t *testing.T) {
	t.Parallel()
	f := s3posix.StartFlaky(t)
	s := openS3(t, f.URL)
	id := blob.NewID()
	if err := s.Put(t.Context(), id, bytes.NewReader([]byte("data")), 4); err != nil {
		t.Fatal(err)
	}
	for name, call := range map[string]func() error{
		"Open": func() error {
			r, err := s.Open(t.Context(), id, 0, 4)
			if err == nil {
				err = r.Close()
			}
			return err
		},
		"Size": func() error { _, err := s.Size(t.Context(), id); return err },
		"All": func() error {
			for _, err := range s.All(t.Context()) {
				return err
			}
			return errors.New("nothing listed")
		},
		"Delete": func() error { return s.Delete(context.WithoutCancel(t.Context()), blob.NewID()) },
	} {
		f.Break(func(w http.ResponseWriter, r *http.Request) { f.Repair(); s3posix.Answer(503)(w, r) })
		if err := call(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if f.Met() != 1 {
			t.Errorf("%s met no fault", name)
		}
	}
}
