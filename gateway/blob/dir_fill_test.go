//go:build unix

package blob_test

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/fencegate/fencegate/gateway/blob"
)

// interruption is an empty reader that calls a function first.
type interruption func()

func (m interruption) Read([]byte) (int, error) {
	m()
	return 0, io.EOF
}

// A machine that continues from a snapshot hands out places that its copy is just filling: acknowledged blobs stay
// unchanged.
func TestOfTwoThatFillAPlaceAtOnceOneDoes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		first string
		ok    bool
	}{"the first one succeeds": {"of the first!", true}, "the first one fails": {"cut", false}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root, id := t.TempDir(), blob.NewID()
			first, second := reserver(t, root), reserver(t, root)
			if err := first.Reserve(t.Context(), []blob.ID{id}); err != nil {
				t.Fatal(err)
			}
			var late error
			fill := interruption(func() { late = second.Fill(t.Context(), id, strings.NewReader("of the second"), 13) })
			err := first.Fill(t.Context(), id, io.MultiReader(fill, strings.NewReader(c.first)), 13)
			if (err == nil) != c.ok || !errors.Is(late, blob.ErrFilled) {
				t.Errorf("the first: %v, the second: %v", err, late)
			}
			r, err := first.Open(t.Context(), id, 0, 13)
			if !c.ok {
				if !errors.Is(err, blob.ErrNotFound) {
					t.Errorf("Open: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(r)
			if err := errors.Join(err, r.Close()); err != nil || string(got) != c.first {
				t.Errorf("it reads %q, %v", got, err)
			}
		})
	}
}

func reserver(t *testing.T, root string) *blob.Dir {
	t.Helper()
	d, err := blob.OpenDir(root)
	if err != nil {
		t.Fatal(err)
	}
	return d
}
