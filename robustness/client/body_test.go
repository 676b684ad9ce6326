package client

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func TestCheckPassesWhatWasWritten(t *testing.T) {
	t.Parallel()
	for _, size := range []int{100, 4095, 4096, 64 << 10, 1<<20 + 1} {
		data := bodyOf("c1.2-3", size)
		saw, wrong, err := check(iotest.OneByteReader(bytes.NewReader(data)), "c1.2-3")
		if saw != "c1.2-3" || wrong != "" || err != nil {
			t.Errorf("%d bytes: %q %q %v", size, saw, wrong, err)
		}
		_, wrong, err = checkRange(bytes.NewReader(data[size/3:size/2]), "c1.2-3", size/3, size/2-size/3, size)
		if wrong != "" || err != nil {
			t.Errorf("a range of %d bytes: %q %v", size, wrong, err)
		}
	}
}

func TestCheckFindsEachKindOfDamage(t *testing.T) {
	t.Parallel()
	const size = 12388
	data, other := bodyOf("c1.2-3", size), bodyOf("c9.1-7", size)
	changed := bytes.Clone(data)
	changed[size-1] ^= 1
	for _, c := range []struct {
		name, op, wrong string
		data            []byte
	}{
		{"half an object", "c1.2-3", "6194 bytes from 0 on of c1.2-3, of 12388", data[:size/2]},
		{"none of it", "c1.2-3", "begins with", nil},
		{"its first line only", "c1.2-3", "13 bytes from 0 on of c1.2-3, of 12388", data[:13]},
		{"too much", "c1.2-3", "12389 bytes", append(bytes.Clone(data), 'x')},
		{"one other bit", "c1.2-3", "the byte at 12387", changed},
		{"the end of another", "c1.2-3", "the byte at 8192", append(bytes.Clone(data[:8192]), other[8192:]...)},
		{"the bytes of another", "c1.2-3", "the bytes say c9.1-7", other},
		{"no metadata", "", "without the metadata", data},
		{"a first line without end", "c1.2-3", "begins with", []byte(strings.Repeat("x", 500))},
		{"another length's bytes", "c1.2-3", "the byte at 13", append(bytes.Clone(data[:13]), bodyOf("c1.2-3", size+1)[13:size]...)},
	} {
		if _, wrong, err := check(bytes.NewReader(c.data), c.op); err != nil || !strings.Contains(wrong, c.wrong) {
			t.Errorf("%s: got %q, %v", c.name, wrong, err)
		}
	}
	for wrong, part := range map[string][]byte{"99 bytes": data[50:149], "101 bytes": data[50:151], "the byte at 50": data[51:151]} {
		if _, got, err := checkRange(bytes.NewReader(part), "c1.2-3", 50, 100, size); err != nil || !strings.Contains(got, wrong) {
			t.Errorf("a range: got %q, %v; want %s", got, err, wrong)
		}
	}
}

func TestATornConnectionIsNoDamage(t *testing.T) {
	t.Parallel()
	for _, n := range []int{5, 5000} {
		torn := io.MultiReader(bytes.NewReader(bodyOf("c1.2-3", 9000)[:n]), iotest.ErrReader(io.ErrUnexpectedEOF))
		if _, wrong, err := check(torn, "c1.2-3"); wrong != "" || !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("after %d bytes: got %q, %v", n, wrong, err)
		}
	}
}
