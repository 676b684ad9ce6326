//go:build unix

package stack

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/fencegate/fencegate/fence"
)

func TestAFolderOfOthersIsRefusedAndLeftAlone(t *testing.T) {
	t.Parallel()
	theirs := t.TempDir()
	if err := os.WriteFile(filepath.Join(theirs, "master.key"), []byte("k1:00\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var invalid *fence.InvalidError
	if _, err := openDir(DevConfig{Dir: theirs}); !errors.As(err, &invalid) || invalid.Field != "data" {
		t.Errorf("accepted, with %v", err)
	}
	if entries, err := os.ReadDir(theirs); err != nil || len(entries) != 1 {
		t.Errorf("now it holds %v, %v", entries, err)
	}
}

func TestAnEmptyFolderAndItsOwnAreTaken(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state")
	for _, when := range []string{"first", "again"} {
		s, err := openDir(DevConfig{Dir: dir})
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		if err := os.WriteFile(filepath.Join(dir, "master.key"), []byte("k1:00\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Not parallel: it sets the environment.
func TestTheDefaultFolderIsBelowTheUsersData(t *testing.T) {
	parent := t.TempDir() // like /var/lib
	t.Setenv("XDG_DATA_HOME", parent)
	dir, err := dataDir()
	if err != nil || dir != filepath.Join(parent, "fencegate") {
		t.Fatalf("%s, %v", dir, err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "blobs"), 0o700); err != nil { // a folder of serve
		t.Fatal(err)
	}
	var invalid *fence.InvalidError
	if _, err := openDir(DevConfig{}); !errors.As(err, &invalid) {
		t.Errorf("accepted, with %v", err)
	}
}
