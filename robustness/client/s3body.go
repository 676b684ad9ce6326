package client

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
)

// block is how many bytes of a body derive from one seed, so that a body can be read from any offset.
const block = 4 << 10

// body is the object of size bytes that the write op makes: a first line with op and size, then bytes that are unique
// to them. It implements io.ReadSeeker.
type body struct {
	op     string
	size   int64
	head   []byte
	seed   uint64
	offset int64
	at     int64 // the block in made; -1: none
	made   [block]byte
}

var (
	_ io.ReadSeeker = (*body)(nil)
	_ io.ReaderAt   = (*body)(nil)
)

func bodyOf(op string, size int) *body {
	head := fmt.Appendf(nil, "%s %d\n", op, size)
	h := fnv.New64a()
	_, _ = h.Write(head) // never fails
	return &body{op: op, size: int64(size), head: head, seed: h.Sum64(), at: -1}
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	if b.offset >= b.size {
		return 0, io.EOF
	}
	n := 0
	for n < len(p) && b.offset < b.size {
		b.fill(b.offset / block)
		from := b.offset % block
		some := copy(p[n:], b.made[from:min(block, from+b.size-b.offset)])
		n, b.offset = n+some, b.offset+int64(some)
	}
	return n, nil
}

func (b *body) fill(at int64) {
	if b.at == at {
		return
	}
	b.at = at
	r := rand.NewPCG(b.seed, uint64(at))
	for i := 0; i < block; i += 8 {
		binary.LittleEndian.PutUint64(b.made[i:], r.Uint64())
	}
	if at == 0 {
		copy(b.made[:], b.head)
	}
}

// Seek implements io.Seeker.
func (b *body) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += b.offset
	case io.SeekEnd:
		offset += b.size
	}
	if offset < 0 {
		return b.offset, errors.New("seek before the body")
	}
	b.offset = offset
	return offset, nil
}

// ReadAt implements io.ReaderAt, for one goroutine.
func (b *body) ReadAt(p []byte, offset int64) (int, error) {
	before := b.offset
	defer func() { b.offset = before }()
	b.offset = offset
	n, err := io.ReadFull(b, p)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = io.EOF
	}
	return n, err
}

// check reads an object whose metadata names op. It returns whose value it is and what is wrong with its bytes. An
// error means only that reading failed.
func check(r io.Reader, op string) (saw, wrong string, err error) {
	if op == "" {
		return "", "an object without the metadata op", nil
	}
	head := make([]byte, 0, 128)
	for len(head) < cap(head) && !bytes.HasSuffix(head, []byte{'\n'}) {
		n, err := r.Read(head[len(head) : len(head)+1])
		head = head[:len(head)+n]
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return op, "", err
		}
	}
	var named string
	var size int
	if n, _ := fmt.Sscanf(string(head), "%s %d\n", &named, &size); n < 2 || head[len(head)-1] != '\n' || size < 0 {
		return op, fmt.Sprintf("the object of %s begins with %.40q", op, head), nil
	}
	if named != op {
		return op, fmt.Sprintf("the metadata says %s, the bytes say %.40s", op, named), nil
	}
	wrong, err = compare(io.MultiReader(bytes.NewReader(head), r), bodyOf(op, size), int64(size))
	return op, wrong, err
}

// checkRange is check for a range: length bytes from an offset on, of an object of size bytes.
func checkRange(r io.Reader, op string, from, length, size int64) (saw, wrong string, err error) {
	if op == "" {
		return "", "an object without the metadata op", nil
	}
	want := bodyOf(op, int(size))
	want.offset = from
	wrong, err = compare(r, want, length)
	return op, wrong, err
}

// compare reads to the end and compares with the next length bytes of want.
func compare(r io.Reader, want *body, length int64) (wrong string, err error) {
	start := want.offset
	got, expected := make([]byte, 32<<10), make([]byte, 32<<10)
	for done := int64(0); ; {
		n, err := r.Read(got)
		if int64(n) > length-done {
			return fmt.Sprintf("more than %d bytes from %d on of %s (%d bytes)", length, start, want.op, want.size), nil
		}
		if _, short := io.ReadFull(want, expected[:n]); short != nil {
			return fmt.Sprintf("bytes beyond the end of %s (%d bytes)", want.op, want.size), nil
		}
		if i := differs(got[:n], expected[:n]); i >= 0 {
			return fmt.Sprintf("the byte at %d is not that of %s (%d bytes)", start+done+int64(i), want.op, want.size), nil
		}
		done += int64(n)
		switch {
		case errors.Is(err, io.EOF) && done < length:
			return fmt.Sprintf("%d of %d bytes from %d on of %s (%d bytes)", done, length, start, want.op, want.size), nil
		case errors.Is(err, io.EOF):
			return "", nil
		case err != nil:
			return "", err
		}
	}
}

// differs is the first difference of two slices of equal length; -1: none.
func differs(a, b []byte) int {
	if bytes.Equal(a, b) {
		return -1
	}
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return -1
}
