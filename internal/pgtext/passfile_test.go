//go:build unix

package pgtext_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/fencegate/fencegate/internal/pgtext"
)

// pgx ignores a password file that it can't read.
func TestAPasswordFileThatCanNotBeReadIsSaid(t *testing.T) {
	dir := t.TempDir()
	there, missing := filepath.Join(dir, "there"), filepath.Join(dir, "mis'sing")
	if err := os.WriteFile(there, []byte("another:*:*:*:geheim\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ address, variable, want string }{
		{"postgres://u@h/d?passfile=" + pipe, "", ""}, // is not opened: it can be read once
		{"postgres://u@h/d", pipe, ""},
		{"postgres://u@h/d?passfile=" + there, missing, ""},
		{"postgres://u@h/d?passfile=" + missing, "", missing + ", which can't be read: no such file or directory"},
		{"postgres://u@h:1,i:2/d?sslmode=disable&passfile=" + missing, there, missing + ", which can't be read: no such file or directory"},
		{"postgres://u@h/d?passfile=" + dir, "", dir + ", which can't be read: is a directory"},
		{"postgres://u:geheim@h/d?passfile=" + missing, "", ""},
		{`host=h passfile='` + dir + `/mis\'sing' user=u`, "", missing + ", which can't be read: no such file or directory"},
		{"host=h passfile = " + there, missing, ""},
		{"postgres://u@h/d", "", ""},
		{"postgres://u@h/d", there, ""},
		{"postgres://u@h/d", missing, missing + ", which can't be read: no such file or directory"},
		{"nonsense", missing, ""},
	} {
		t.Setenv("PGPASSFILE", c.variable)
		got, want := "", ""
		if err := pgtext.CheckPassfile(c.address); err != nil {
			got = err.Error()
		}
		if c.want != "" {
			want = "names the password file " + c.want
			if c.variable == missing && !strings.Contains(c.address, "passfile") {
				want = "has no password, and PGPASSFILE " + want
			}
		}
		if got != want {
			t.Errorf("%s, PGPASSFILE=%s: %q, want %q", c.address, c.variable, got, want)
		}
	}
}
