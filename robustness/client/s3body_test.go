package client

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func whole(t *testing.T, op string, size int) []byte {
	t.Helper()
	data, err := io.ReadAll(bodyOf(op, size))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestABodyIsTheSameFromAnywhere(t *testing.T) {
	t.Parallel()
	if err := iotest.TestReader(bodyOf("c1.2-3", 3*block+17), whole(t, "c1.2-3", 3*block+17)); err != nil {
		t.Error(err)
	}
}

func TestCheckPassesWhatWasWritten(t *testing.T) {
	t.Parallel()
	for _, size := range []int{100, block - 1, block, 64 << 10, 1<<20 + 1} {
		data := whole(t, "c1.2-3", size)
		saw, wrong, err := check(iotest.OneByteReader(bytes.NewReader(data)), "c1.2-3")
		if saw != "c1.2-3" || wrong != "" || err != nil {
			t.Errorf("%d bytes: %q %q %v", size, saw, wrong, err)
		}
		part := data[size/3 : size/2]
		_, wrong, err = checkRange(bytes.NewReader(part), "c1.2-3", int64(size/3), int64(len(part)), int64(size))
		if wrong != "" || err != nil {
			t.Errorf("a range of %d bytes: %q %v", size, wrong, err)
		}
	}
}

func TestCheckFindsEachKindOfDamage(t *testing.T) {
	t.Parallel()
	const size = 3*block + 100
	data, other := whole(t, "c1.2-3", size), whole(t, "c9.1-7", size)
	longer, changed := whole(t, "c1.2-3", size+1), bytes.Clone(data)
	changed[size-1] ^= 1
	for _, c := range []struct {
		name, op, wrong string
		data            []byte
	}{
		{"half an object", "c1.2-3", "6194 of 12388 bytes", data[:size/2]},
		{"none of it", "c1.2-3", "begins with", nil},
		{"its first line only", "c1.2-3", "13 of 12388 bytes", data[:13]},
		{"too much", "c1.2-3", "more than 12388", append(bytes.Clone(data), 'x')},
		{"one other bit", "c1.2-3", "the byte at 12387", changed},
		{"the end of another", "c1.2-3", "the byte at 8192", append(bytes.Clone(data[:2*block]), other[2*block:]...)},
		{"the bytes of another", "c1.2-3", "the bytes say c9.1-7", other},
		{"no metadata", "", "without the metadata", data},
		{"a first line without end", "c1.2-3", "begins with", []byte(strings.Repeat("x", 500))},
		{"another length's bytes", "c1.2-3", "the byte at 13", append(bytes.Clone(data[:13]), longer[13:size]...)},
	} {
		if _, wrong, err := check(bytes.NewReader(c.data), c.op); err != nil || !strings.Contains(wrong, c.wrong) {
			t.Errorf("%s: got %q, %v", c.name, wrong, err)
		}
	}
}

func TestCheckOfARangeFindsDamage(t *testing.T) {
	t.Parallel()
	const size = 3 * block
	data := whole(t, "c1.2-3", size)
	for _, c := range []struct {
		name, wrong  string
		data         []byte
		from, length int64
	}{
		{"shorter", "99 of 100 bytes", data[50:149], 50, 100},
		{"longer", "more than 100 bytes", data[50:151], 50, 100},
		{"from elsewhere", "the byte at 50", data[51:151], 50, 100},
	} {
		_, wrong, err := checkRange(bytes.NewReader(c.data), "c1.2-3", c.from, c.length, size)
		if err != nil || !strings.Contains(wrong, c.wrong) {
			t.Errorf("%s: got %q, %v", c.name, wrong, err)
		}
	}
}

func TestATornConnectionIsNoDamage(t *testing.T) {
	t.Parallel()
	for _, n := range []int{5, 5000} {
		torn := io.MultiReader(bytes.NewReader(whole(t, "c1.2-3", 9000)[:n]), iotest.ErrReader(io.ErrUnexpectedEOF))
		if _, wrong, err := check(torn, "c1.2-3"); wrong != "" || !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("after %d bytes: got %q, %v", n, wrong, err)
		}
	}
}
