package client

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
)

const (
	mebibyte = 1 << 20
	// mostBytes is more than any object has.
	mostBytes = 64 * mebibyte
)

// bodyOf is the object of size bytes that the write op makes: a first line with op and size, then bytes that are unique
// to them.
func bodyOf(op string, size int) []byte {
	b := make([]byte, size+8)
	head := fmt.Appendf(nil, "%s %d\n", op, size)
	h := fnv.New64a()
	_, _ = h.Write(head) // never fails
	r := rand.NewPCG(h.Sum64(), 0)
	for i := 0; i < size; i += 8 {
		binary.LittleEndian.PutUint64(b[i:], r.Uint64())
	}
	copy(b, head)
	return b[:size]
}

// check reads an object whose metadata names op. It returns whose value it is and what is wrong with its bytes. An
// error means only that reading failed.
func check(r io.Reader, op string) (saw, wrong string, err error) {
	got, err := io.ReadAll(io.LimitReader(r, mostBytes))
	if err != nil {
		return op, "", err
	}
	var by string
	var size int
	head, _, _ := bytes.Cut(got[:min(len(got), 128)], []byte("\n"))
	switch n, _ := fmt.Sscanf(string(head), "%s %d", &by, &size); {
	case op == "":
		return "", "an object without the metadata op", nil
	case n < 2 || size < 0 || size > mostBytes:
		return op, fmt.Sprintf("the object of %s begins with %.40q", op, head), nil
	case by != op:
		return op, fmt.Sprintf("the metadata says %s, the bytes say %.40s", op, by), nil
	}
	return op, damage(got, bodyOf(op, size), 0, op), nil
}

// checkRange is check for a range: length bytes from an offset on, of an object of size bytes.
func checkRange(r io.Reader, op string, from, length, size int) (saw, wrong string, err error) {
	got, err := io.ReadAll(io.LimitReader(r, mostBytes))
	switch {
	case err != nil:
		return op, "", err
	case op == "":
		return "", "an object without the metadata op", nil
	}
	return op, damage(got, bodyOf(op, size)[from:from+length], from, op), nil
}

// damage says how bytes differ from those of op from an offset on; "": not at all.
func damage(got, want []byte, from int, op string) string {
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			return fmt.Sprintf("the byte at %d is not that of %s", from+i, op)
		}
	}
	if len(got) != len(want) {
		return fmt.Sprintf("%d bytes from %d on of %s, of %d", len(got), from, op, len(want))
	}
	return ""
}
