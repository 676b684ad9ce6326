package blob_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/gateway/blob/blobtest"
)

func openDir(t *testing.T) blob.Store {
	t.Helper()
	d, err := blob.OpenDir(filepath.Join(t.TempDir(), "blobs"))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestDirConforms(t *testing.T) {
	t.Parallel()
	blobtest.Run(t, openDir)
}

func TestAStoreThatReadsNoFurtherConforms(t *testing.T) {
	t.Parallel()
	blobtest.Run(t, func(t *testing.T) blob.Store { t.Helper(); return blobtest.Exact{Store: openDir(t)} })
}

func TestIDsReadBackAndNothingElseIsOne(t *testing.T) {
	t.Parallel()
	id := blob.NewID()
	if got, err := blob.ParseID(id.String()); err != nil || got != id {
		t.Errorf("ParseID(%s) = %s, %v", id, got, err)
	}
	for _, s := range []string{
		"", "..", "../../etc/passwd", strings.Repeat("a", 31), strings.Repeat("a", 33), strings.Repeat("A", 32),
		strings.Repeat("../", 10) + "ab", strings.Repeat("\x00", 32), "/" + strings.Repeat("a", 31),
	} {
		if _, err := blob.ParseID(s); !errors.Is(err, blob.ErrID) {
			t.Errorf("ParseID(%q): got %v, want ErrID", s, err)
		}
	}
}

func TestDirSurvivesReopeningAndPassesOverStrangers(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	d, err := blob.OpenDir(root)
	if err != nil {
		t.Fatal(err)
	}
	id := blob.NewID()
	if err := d.Put(t.Context(), id, strings.NewReader("hello"), 5); err != nil {
		t.Fatal(err)
	}
	// An id in the wrong folder is not a blob either.
	for _, name := range []string{"README", id.String(), id.String() + ".part"} {
		if err := os.WriteFile(filepath.Join(root, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	again, err := blob.OpenDir(root)
	if err != nil {
		t.Fatal(err)
	}
	var n int
	for info, err := range again.All(t.Context()) {
		if err != nil || info.ID != id || info.Size != 5 {
			t.Errorf("All: %v, %v", info, err)
		}
		n++
	}
	if n != 1 {
		t.Errorf("All listed %d blobs, want 1", n)
	}
}

func TestDeleteRemovesWhatACrashLeft(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	d, err := blob.OpenDir(root)
	if err != nil {
		t.Fatal(err)
	}
	id := blob.NewID()
	if err := d.Put(t.Context(), id, strings.NewReader("hello"), 5); err != nil {
		t.Fatal(err)
	}
	matches, err := filepath.Glob(filepath.Join(root, "*", id.String()))
	if err != nil || len(matches) != 1 {
		t.Fatalf("glob: %v, %v", matches, err)
	}
	if err := os.Rename(matches[0], matches[0]+".part"); err != nil { // as if the process had died before the rename
		t.Fatal(err)
	}
	if _, err := d.Size(t.Context(), id); !errors.Is(err, blob.ErrNotFound) {
		t.Errorf("an unfinished blob is visible: %v", err)
	}
	if err := d.Delete(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(matches[0] + ".part"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the unfinished blob is still there: %v", err)
	}
}

func TestDirErrorsNameTheIDAndNotThePath(t *testing.T) {
	t.Parallel()
	if _, err := blob.OpenDir(""); err == nil {
		t.Error("OpenDir without a path succeeded")
	}
	d := openDir(t)
	id := blob.NewID()
	_, err := d.Open(t.Context(), id, 0, 1)
	if err == nil || !strings.Contains(err.Error(), id.String()) || strings.Contains(err.Error(), string(filepath.Separator)) {
		t.Errorf("got %v", err)
	}
	if err := d.Put(t.Context(), id, bytes.NewReader(nil), 1); err == nil || !strings.Contains(err.Error(), id.String()) {
		t.Errorf("got %v", err)
	}
}
