package migrations_test

import (
	"bytes"
	"flag"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/fencegate/fencegate/migrations"
)

var update = flag.Bool("update", false, "write the hashes of the code into the manifests, and those of the baselines into their notes")

var hashLine = regexp.MustCompile(`(?m)^hash .*$`)

func load(t *testing.T, name string) migrations.Set {
	t.Helper()
	set, err := migrations.Load(os.DirFS("."), name)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// A manifest's hash is that of the files, and its revision rises with it. A database records both.
func TestChangedCodeHasANewRevision(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"fence", "objects"} {
		set := load(t, name)
		file := filepath.Join(name, "code", "manifest.txt")
		if *update {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, hashLine.ReplaceAll(text, []byte("hash "+set.Code.Sum())), 0o600); err != nil {
				t.Fatal(err)
			}
			set = load(t, name)
		}
		if set.Code.Hash != set.Code.Sum() {
			t.Errorf("%s: the files have changed; raise the revision in %s where it has not risen yet, and run make code-hash", name, file)
		}
		base, revision, hash := released(t, "migrations/"+filepath.ToSlash(file))
		if hash != "" && hash != set.Code.Hash && set.Code.Revision <= revision {
			t.Errorf("%s: revision %d has another text at %s: raise the revision in %s", name, revision, base, file)
		}
	}
}

// A database records the hash of the baseline that made it, so that one that another text made is refused.
func TestEachBaselineNotesItsHash(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"fence", "objects"} {
		file := filepath.Join(name, "state", "000001_baseline.up.sql")
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		sum := migrations.BaselineSum(text)
		if *update {
			if err := os.WriteFile(file, bytes.Replace(text, []byte(load(t, name).Baseline), []byte(sum), 1), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if noted := load(t, name).Baseline; noted != sum {
			t.Errorf("%s notes the hash %s of its text, which is %s: run make code-hash", file, noted, sum)
		}
	}
}

// released returns the manifest of the commit from which this branch started, or, on the main branch, of the previous
// commit; it is empty without such a commit.
func released(t *testing.T, file string) (base string, revision int, hash string) {
	t.Helper()
	git := func(args ...string) string {
		out, _ := exec.CommandContext(t.Context(), "git", args...).Output() // without history it is empty
		return strings.TrimSpace(string(out))
	}
	head := git("rev-parse", "HEAD")
	for _, branch := range []string{"origin/main", "main"} {
		if base = git("merge-base", "HEAD", branch); base != "" {
			break
		}
	}
	if base == head && git("status", "--porcelain", "--", ".") == "" {
		base = git("rev-parse", "HEAD^")
	}
	if base == "" {
		t.Log("there is no history to compare with: only the hash is checked")
		return "", 0, ""
	}
	text := git("show", base+":"+file)
	for line := range strings.Lines(text) {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch word {
		case "revision":
			revision, _ = strconv.Atoi(rest)
		case "hash":
			hash = rest
		}
	}
	return base, revision, hash
}

var (
	made   = regexp.MustCompile(`(?m)^CREATE OR REPLACE (FUNCTION|PROCEDURE|VIEW) ([a-z]+\.[a-z_]+)`)
	others = regexp.MustCompile(`(?m)^(CREATE|ALTER) `)
)

// A right that a newer text revokes must be gone in a database that has the older one. So each function and view first
// revokes all rights of our roles, and the next line grants those that remain.
func TestEachFunctionSaysWhoMayCallIt(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"fence", "objects"} {
		for _, file := range load(t, name).Code.Files {
			all := made.FindAllStringSubmatchIndex(file.Text, -1)
			if n := len(others.FindAllString(file.Text, -1)); n != len(all) {
				t.Errorf("%s/code/%s: %d statements CREATE or ALTER, of which %d are CREATE OR REPLACE FUNCTION, PROCEDURE or VIEW", name, file.Name, n, len(all))
			}
			for i, at := range all {
				end := len(file.Text)
				if i+1 < len(all) {
					end = all[i+1][0]
				}
				kind, thing := file.Text[at[2]:at[3]]+" ", file.Text[at[4]:at[5]]
				if kind == "VIEW " {
					kind = ""
				}
				revoke := regexp.MustCompile(`(?m)^REVOKE ALL ON ` + kind + regexp.QuoteMeta(thing) + `(\(.*\))? FROM PUBLIC, fence_writer, fence_gateway(?:, fence_protector|, fence_locker)?;$`)
				if !revoke.MatchString(file.Text[at[0]:end]) {
					t.Errorf("%s/code/%s: after %s comes no REVOKE ALL ON %s%s… FROM PUBLIC, fence_writer, fence_gateway;", name, file.Name, thing, kind, thing)
				}
			}
		}
	}
}

// A transaction's lock belongs to the portal that runs the statement, and a portal that fails inside a savepoint releases it
// although earlier writes stay; see locks.sql. A block with EXCEPTION hands it to the transaction.
func TestEachLockIsTakenInABlockWithException(t *testing.T) {
	t.Parallel()
	comments := regexp.MustCompile(`--[^\n]*`)
	takes := regexp.MustCompile(`pg_(try_)?advisory_xact_lock|LOCK TABLE`)
	before := regexp.MustCompile(`\b(BEGIN|END( \$\$)?;)`)
	behind := regexp.MustCompile(`\b(BEGIN|EXCEPTION\s+WHEN|END( \$\$)?;)`)
	found := 0
	for _, name := range []string{"fence", "objects"} {
		for _, f := range load(t, name).Code.Files {
			text := comments.ReplaceAllString(f.Text, "")
			for _, at := range takes.FindAllStringIndex(text, -1) {
				found++
				begun := before.FindAllString(text[:at[0]], -1)
				if len(begun) == 0 || begun[len(begun)-1] != "BEGIN" || !strings.HasPrefix(behind.FindString(text[at[1]:]), "EXCEPTION") {
					line, _, _ := strings.Cut(text[at[0]:], "\n")
					t.Errorf("%s/%s: %q: use fence.try_lock, fence.lock or fence.lock_within", name, f.Name, line)
				}
			}
		}
	}
	if found < 10 {
		t.Errorf("%d locks found", found)
	}
}

// Code files stay small enough to be read at once.
func TestNoFileOfCodeIsLong(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"fence", "objects"} {
		for _, file := range load(t, name).Code.Files {
			if n := strings.Count(file.Text, "\n"); n > 400 {
				t.Errorf("%s/code/%s has %d lines; at most 400", name, file.Name, n)
			}
		}
	}
}

// A server with another encoding than UTF-8 refuses other characters, even in comments.
func TestTheSQLIsASCII(t *testing.T) {
	t.Parallel()
	files := 0
	err := fs.WalkDir(migrations.FS, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := fs.ReadFile(migrations.FS, name)
		files++
		if i := bytes.IndexFunc(text, func(r rune) bool { return r > unicode.MaxASCII }); i >= 0 {
			t.Errorf("%s:%d has a character that is not ASCII", name, 1+bytes.Count(text[:i], []byte("\n")))
		}
		return err
	})
	if err != nil || files == 0 {
		t.Errorf("%d files, %v", files, err)
	}
}

// A function in a schema that a login's search_path lists before pg_catalog must not be called.
func TestEachStepOfTheStateSetsTheSearchPathFirst(t *testing.T) {
	t.Parallel()
	steps, err := fs.Glob(migrations.FS, "*/state/*.up.sql")
	if err != nil || len(steps) == 0 {
		t.Fatal(steps, err)
	}
	for _, step := range steps {
		if text, err := fs.ReadFile(migrations.FS, step); err != nil || !bytes.HasPrefix(text, []byte("SET LOCAL search_path = pg_catalog, pg_temp;\n")) {
			t.Errorf("%s, %v", step, err)
		}
	}
}
