//go:build unix

package pgserver

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Installation is one PostgreSQL on the machine.
type Installation struct {
	BinDir string
	Major  int
}

func (i Installation) String() string { return fmt.Sprintf("%d in %s", i.Major, i.BinDir) }

// ErrNotFound reports that the machine has no PostgreSQL server of a supported version.
var ErrNotFound = errors.New("no PostgreSQL server (postgres, initdb) of version 14 or later on this machine; " +
	"install one (Debian, Ubuntu: apt install postgresql; macOS: brew install postgresql@17)")

// globs are the packages' folders for the binaries, besides PATH: Debian and Ubuntu, Red Hat's repository, Homebrew on
// both architectures, Postgres.app.
var globs = []string{
	"/usr/lib/postgresql/*/bin",
	"/usr/pgsql-*/bin",
	"/opt/homebrew/opt/postgresql*/bin",
	"/usr/local/opt/postgresql*/bin",
	"/Applications/Postgres.app/Contents/Versions/*/bin",
	"/usr/local/pgsql/bin",
}

// Find lists the installations: first the one in PATH, then the others, newest
// first. It returns [ErrNotFound] instead of an empty list.
func Find() ([]Installation, error) {
	var path, rest []Installation
	if p, err := exec.LookPath("postgres"); err == nil {
		path = add(path, filepath.Dir(resolved(p)))
	}
	for _, g := range globs {
		dirs, err := filepath.Glob(g)
		if err != nil {
			return nil, fmt.Errorf("look for PostgreSQL: %w", err)
		}
		for _, d := range dirs {
			rest = add(rest, resolved(d))
		}
	}
	slices.SortStableFunc(rest, func(a, b Installation) int { return cmp.Compare(b.Major, a.Major) })
	all := path
	for _, in := range rest {
		if !slices.Contains(all, in) {
			all = append(all, in)
		}
	}
	if len(all) == 0 {
		return nil, ErrNotFound
	}
	return all, nil
}

func resolved(p string) string {
	if r, err := filepath.EvalSymlinks(p); err == nil {
		return r
	}
	return p
}

// add appends the folder if it holds a server of a supported version.
func add(list []Installation, dir string) []Installation {
	if _, err := os.Stat(filepath.Join(dir, "initdb")); err != nil {
		return list
	}
	major, err := majorOf(dir)
	if err != nil || major < OldestMajor {
		return list
	}
	return append(list, Installation{BinDir: dir, Major: major})
}

// majorOf runs the binary, which prints "postgres (PostgreSQL) 17.2 (Debian …)", or "… 18beta1".
func majorOf(dir string) (int, error) {
	out, err := exec.Command(filepath.Join(dir, "postgres"), "--version").Output()
	if err != nil {
		return 0, fmt.Errorf("version of %s: %w", dir, err)
	}
	_, version, ok := strings.Cut(string(out), ") ")
	if !ok {
		return 0, fmt.Errorf("version of %s: %q is not understood", dir, out)
	}
	end := strings.IndexFunc(version, func(r rune) bool { return r < '0' || r > '9' })
	if end < 0 {
		end = len(version)
	}
	return strconv.Atoi(version[:end])
}
