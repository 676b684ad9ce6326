package blob //nolint:testpackage // what is synced shows only inside

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestEveryNewFolderIsSyncedInTheOneAboveIt(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	path := filepath.Join(root, "a", "b", "c")
	var synced []string
	for range 2 { // the second time all folders exist; a crash may have prevented their sync
		synced = nil
		if err := makeFolders(path, func(folder string) error { synced = append(synced, folder); return nil }); err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(synced, filepath.Join(root, "a", "b")) {
			t.Errorf("synced %q", synced)
		}
	}
	again := filepath.Join(root, "x", "y", "z")
	synced = nil
	if err := makeFolders(again, func(folder string) error { synced = append(synced, folder); return syncFolder(folder) }); err != nil {
		t.Fatal(err)
	}
	for _, folder := range []string{root, filepath.Join(root, "x"), filepath.Join(root, "x", "y")} {
		if !slices.Contains(synced, folder) {
			t.Errorf("%s was not synced", folder)
		}
	}
}

func TestABatchOfPlacesIsOneFolderThatIsSyncedAtTheEnd(t *testing.T) {
	t.Parallel()
	d, err := OpenDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ids := NewIDs(20)
	var synced []string
	d.sync = func(folder string) error {
		synced = append(synced, folder)
		for _, id := range ids {
			if _, err := os.Stat(filepath.Join(folder, id.String())); err != nil {
				t.Errorf("not there when the folder was synced: %v", err)
			}
		}
		return nil
	}
	if err := d.Reserve(t.Context(), ids); err != nil || len(synced) != 1 {
		t.Errorf("Reserve: %v; synced %q", err, synced)
	}
	if other := NewIDs(1)[0]; slices.Contains(ids, other) {
		t.Errorf("id %s came twice", other)
	}
}
