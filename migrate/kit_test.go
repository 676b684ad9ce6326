package migrate_test

import (
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/fencegate/fencegate/migrate"
	"github.com/fencegate/fencegate/migrations"
)

// kitOf is this program's sets, after a change of their files.
func kitOf(t *testing.T, change func(fstest.MapFS)) migrate.Kit {
	t.Helper()
	files := fstest.MapFS{}
	err := fs.WalkDir(migrations.FS, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := fs.ReadFile(migrations.FS, name)
		files[name] = &fstest.MapFile{Data: text}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	change(files)
	var k migrate.Kit
	for _, name := range []string{"fence", "objects"} {
		set, err := migrations.Load(files, name)
		if err != nil {
			t.Fatal(err)
		}
		set.Code.Hash = set.Code.Sum()
		k = append(k, set)
	}
	return k
}

// later is a newer program's sets, with states up to a version: each step adds a table.
func later(t *testing.T, latest int) migrate.Kit {
	t.Helper()
	return kitOf(t, func(files fstest.MapFS) {
		for v := 2; v <= latest; v++ {
			step(files, "fence", v)
			step(files, "objects", v)
		}
	})
}

// step adds a step to a set's state, which makes a table.
func step(files fstest.MapFS, set string, version int) {
	add(files, fmt.Sprintf("%s/state/%06d_more.up.sql", set, version),
		fmt.Sprintf("SET ROLE fence_owner;\nCREATE TABLE %[1]s.more_%[2]d ();\nRESET ROLE;\nCOMMENT ON SCHEMA %[1]s IS 'fencegate %[1]s state %[2]d';\n", set, version))
	add(files, fmt.Sprintf("%s/state/%06d_more.down.sql", set, version),
		fmt.Sprintf("DROP TABLE %[1]s.more_%[2]d;\nCOMMENT ON SCHEMA %[1]s IS 'fencegate %[1]s state %[3]d';\n", set, version, version-1))
}

func add(files fstest.MapFS, name, text string) { files[name] = &fstest.MapFile{Data: []byte(text)} }

// edit replaces a text in a file, which must be there.
func edit(t *testing.T, files fstest.MapFS, name, old, now string) {
	t.Helper()
	text := string(files[name].Data)
	if !strings.Contains(text, old) {
		t.Fatalf("%s has no %q", name, old)
	}
	add(files, name, strings.Replace(text, old, now, 1))
}
