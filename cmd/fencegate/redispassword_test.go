package main

import (
	"os"
	"path/filepath"
	"testing"
)

// A replaced password is used from the next login on.
func TestTheFileWithTheRedisPasswordIsReadAgain(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "password")
	n := nodeAt("r1:6379", "lockers", "first", file)
	for _, want := range []string{"first", "second"} {
		if err := os.WriteFile(file, []byte(want+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if user, password, err := n.Login(); err != nil || user != "lockers" || password != want {
			t.Errorf("%q, %q, %v; want the password %q", user, password, err, want)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if _, password, err := n.Login(); err == nil || password != "" {
		t.Errorf("without the file: %q, %v", password, err)
	}
}
