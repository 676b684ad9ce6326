// Package blobtest is the conformance suite of [blob.Store]: every implementation passes it, and callers may rely only
// on what it checks.
//
//	func TestMyStore(t *testing.T) {
//		blobtest.Run(t, func(t *testing.T) blob.Store { return newMyStore(t) })
//	}
package blobtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/fencegate/fencegate/gateway/blob"
)

// Run checks the stores that open returns; each call of open must return an empty one.
func Run(t *testing.T, open func(t *testing.T) blob.Store) {
	for name, test := range map[string]func(*testing.T, blob.Store){
		"what was put is read back":              roundTrip,
		"a range is read back":                   ranges,
		"a range outside of the blob is ErrSize": outside,
		"an unknown id is ErrNotFound":           unknown,
		"a short reader leaves no blob":          short,
		"a long reader makes no longer blob":     long,
		"a failing reader leaves no blob":        failing,
		"a cancelled put leaves no blob":         cancelled,
		"deleting can be repeated":               deleting,
		"all complete blobs are listed":          listing,
		"blobs are put concurrently":             concurrent,
		"the owner's mark is kept and no blob":   owner,
		"reserved places are filled once":        reserved,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, open(t))
		})
	}
}

func put(t *testing.T, s blob.Store, data []byte) blob.ID {
	t.Helper()
	id := blob.NewID()
	if err := s.Put(t.Context(), id, bytes.NewReader(data), int64(len(data))); err != nil {
		t.Fatalf("Put: %v", err)
	}
	return id
}

func read(t *testing.T, s blob.Store, id blob.ID, offset, length int64) []byte {
	t.Helper()
	r, err := s.Open(t.Context(), id, offset, length)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	defer func() {
		if err := r.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}()
	data, err := io.ReadAll(r)
	if err != nil {
		t.Fatalf("read: %v", err)
	}
	return data
}

func random(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	return b
}

func absent(t *testing.T, s blob.Store, id blob.ID) {
	t.Helper()
	if _, err := s.Open(t.Context(), id, 0, 0); !errors.Is(err, blob.ErrNotFound) {
		t.Errorf("Open: got %v, want ErrNotFound", err)
	}
	if _, err := s.Size(t.Context(), id); !errors.Is(err, blob.ErrNotFound) {
		t.Errorf("Size: got %v, want ErrNotFound", err)
	}
	for info, err := range s.All(t.Context()) {
		if err != nil || info.ID == id {
			t.Errorf("All: got %v, %v", info, err)
		}
	}
}

func roundTrip(t *testing.T, s blob.Store) {
	for _, n := range []int{0, 1, 4096, 1<<20 + 7} {
		data := random(n)
		id := put(t, s, data)
		if got := read(t, s, id, 0, int64(n)); !bytes.Equal(got, data) {
			t.Errorf("%d bytes: read back something else", n)
		}
		if size, err := s.Size(t.Context(), id); err != nil || size != int64(n) {
			t.Errorf("Size = %d, %v; want %d", size, err, n)
		}
	}
}

func ranges(t *testing.T, s blob.Store) {
	data := random(300_000)
	id := put(t, s, data)
	for _, r := range [][2]int64{{0, 0}, {0, 1}, {299_999, 1}, {300_000, 0}, {100, 200_000}} {
		if got := read(t, s, id, r[0], r[1]); !bytes.Equal(got, data[r[0]:r[0]+r[1]]) {
			t.Errorf("bytes %d+%d differ", r[0], r[1])
		}
	}
}

func outside(t *testing.T, s blob.Store) {
	id := put(t, s, random(10))
	for _, r := range [][2]int64{{0, 11}, {10, 1}, {11, 0}, {-1, 1}, {0, -1}} {
		if _, err := s.Open(t.Context(), id, r[0], r[1]); !errors.Is(err, blob.ErrSize) {
			t.Errorf("bytes %d+%d: got %v, want ErrSize", r[0], r[1], err)
		}
	}
}

func unknown(t *testing.T, s blob.Store) { absent(t, s, blob.NewID()) }

func short(t *testing.T, s blob.Store) {
	id := blob.NewID()
	if err := s.Put(t.Context(), id, strings.NewReader("half"), 8); !errors.Is(err, blob.ErrSize) {
		t.Errorf("Put: got %v, want ErrSize", err)
	}
	absent(t, s, id)
}

func long(t *testing.T, s blob.Store) {
	id := blob.NewID()
	err := s.Put(t.Context(), id, strings.NewReader("too much"), 4)
	if err == nil { // it read only the announced bytes
		if got := read(t, s, id, 0, 4); string(got) != "too " {
			t.Errorf("got %q", got)
		}
		return
	}
	if !errors.Is(err, blob.ErrSize) {
		t.Errorf("Put: got %v, want ErrSize", err)
	}
	absent(t, s, id)
}

// Exact is a store that reads exactly the announced number of bytes, like stores that send them to a service. Tests of
// users of stores need it.
type Exact struct{ blob.Store }

// Put implements [blob.Store].
func (e Exact) Put(ctx context.Context, id blob.ID, r io.Reader, size int64) error {
	data := make([]byte, size)
	if _, err := io.ReadFull(r, data); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return fmt.Errorf("%w: %w", blob.ErrSize, err)
		}
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return e.Store.Put(ctx, id, bytes.NewReader(data), size)
}

func failing(t *testing.T, s blob.Store) {
	id := blob.NewID()
	broken := errors.New("broken pipe")
	r := io.MultiReader(bytes.NewReader(random(200_000)), iotest.ErrReader(broken))
	if err := s.Put(t.Context(), id, r, 400_000); !errors.Is(err, broken) {
		t.Errorf("Put: got %v, want the reader's error", err)
	}
	absent(t, s, id)
}

func cancelled(t *testing.T, s blob.Store) {
	id := blob.NewID()
	ctx, cancel := context.WithCancel(t.Context())
	r := io.MultiReader(bytes.NewReader(random(200_000)), onRead(cancel), bytes.NewReader(random(200_000)))
	if err := s.Put(ctx, id, r, 400_000); !errors.Is(err, context.Canceled) {
		t.Errorf("Put: got %v, want context.Canceled", err)
	}
	absent(t, s, id)
}

// onRead calls f when it is read, and is empty.
type onRead func()

func (f onRead) Read([]byte) (int, error) {
	f()
	return 0, io.EOF
}

func deleting(t *testing.T, s blob.Store) {
	id, other := put(t, s, random(5)), put(t, s, random(5))
	for range 2 {
		if err := s.Delete(t.Context(), id); err != nil {
			t.Errorf("Delete: %v", err)
		}
		absent(t, s, id)
	}
	read(t, s, other, 0, 5)
}

func listing(t *testing.T, s blob.Store) {
	want := map[blob.ID]int64{}
	for n := range 20 {
		want[put(t, s, random(n))] = int64(n)
	}
	for info, err := range s.All(t.Context()) {
		if err != nil {
			t.Fatalf("All: %v", err)
		}
		if size, known := want[info.ID]; !known || size != info.Size || info.Changed.IsZero() {
			t.Errorf("All: got %+v", info)
		}
		delete(want, info.ID)
	}
	if len(want) > 0 {
		t.Errorf("All: left out %v", want)
	}
	for _, err := range s.All(t.Context()) {
		if err != nil {
			t.Errorf("All: %v", err)
		}
		break // stopping early is allowed
	}
}

func owner(t *testing.T, s blob.Store) {
	for _, want := range []string{"", "one", "another"} {
		if want != "" {
			if err := s.SetOwner(t.Context(), want); err != nil {
				t.Fatalf("SetOwner: %v", err)
			}
		}
		if got, err := s.Owner(t.Context()); err != nil || got != want {
			t.Errorf("Owner: got %q, %v; want %q", got, err, want)
		}
	}
	for info, err := range s.All(t.Context()) {
		t.Errorf("All: got %v, %v", info, err)
	}
}

func concurrent(t *testing.T, s blob.Store) {
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			data := fmt.Appendf(nil, "blob %d", i)
			id := blob.NewID()
			if err := s.Put(t.Context(), id, bytes.NewReader(data), int64(len(data))); err != nil {
				t.Errorf("Put: %v", err)
				return
			}
			if got := read(t, s, id, 0, int64(len(data))); !bytes.Equal(got, data) {
				t.Errorf("got %q, want %q", got, data)
			}
		})
	}
	wg.Wait()
}

// reserved checks the promises of [blob.Reserver].
func reserved(t *testing.T, s blob.Store) {
	r, makes := s.(blob.Reserver)
	if !makes {
		return
	}
	ids := append(blob.NewIDs(4), blob.NewID())
	if err := r.Reserve(t.Context(), ids); err != nil {
		t.Fatalf("Reserve: %v", err)
	}
	data := random(70_000)
	if err := r.Fill(t.Context(), ids[0], bytes.NewReader(data), int64(len(data))); err != nil {
		t.Fatalf("Fill: %v", err)
	}
	if err := r.Fill(t.Context(), ids[0], strings.NewReader("other"), 5); err == nil {
		t.Error("a place was filled twice")
	}
	if !bytes.Equal(read(t, s, ids[0], 0, int64(len(data))), data) {
		t.Error("a filled place reads other bytes")
	}
	if size, err := s.Size(t.Context(), ids[0]); size != int64(len(data)) || err != nil {
		t.Errorf("Size: got %d, %v", size, err)
	}
	broken := errors.New("broken pipe")
	if err := r.Fill(t.Context(), ids[1], iotest.ErrReader(broken), 5); !errors.Is(err, broken) {
		t.Errorf("Fill: got %v, want the reader's error", err)
	}
	absent(t, s, ids[1])
	if err := r.Fill(t.Context(), ids[2], strings.NewReader("four"), 5); !errors.Is(err, blob.ErrSize) {
		t.Errorf("Fill: got %v, want ErrSize", err)
	}
	absent(t, s, ids[2])
	if err := s.Delete(t.Context(), ids[3]); err != nil {
		t.Errorf("Delete: %v", err)
	}
	for _, id := range []blob.ID{ids[1], ids[2], ids[3], blob.NewID()} {
		if err := r.Fill(t.Context(), id, strings.NewReader("late"), 4); !errors.Is(err, blob.ErrNotFound) {
			t.Errorf("Fill of what is not reserved: got %v, want ErrNotFound", err)
		}
		absent(t, s, id)
	}
	if err := r.Fill(t.Context(), ids[4], strings.NewReader(""), 0); err != nil {
		t.Errorf("Fill of nothing: %v", err)
	}
}
