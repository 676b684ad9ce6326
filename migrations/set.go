package migrations

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strconv"
	"strings"
)

// Program is this program's generation. A set whose MinProgram is higher does not support it. It rises when code drops
// what older programs call.
const Program = 1

// Set is one of the two sets, or a test's own.
type Set struct {
	Name   string // fence or objects; also the schema that the state creates
	State  fs.FS  // golang-migrate pairs, at the root
	Latest int    // the highest version of the state
	Code   Code
	Needs  *Need // the set that this one needs; nil: none

	// Baseline is the hash of the first step of the state, shortened, as each step's note has it. It tells a database
	// that was made by another text of that step.
	Baseline string
}

// Need is the state and code that a set needs of another one.
type Need struct {
	Set      string
	State    int // at least
	Revision int // at least
}

// Code is the functions and views of a set.
type Code struct {
	Revision   int    // rises with each change
	Hash       string // of the files, as the manifest records it
	MinProgram int    // the oldest program generation that the code supports
	Files      []File // in the order in which they are applied
}

// File is one file of code.
type File struct{ Name, Text string }

// Load reads a set from its folder of fsys.
func Load(fsys fs.FS, name string) (Set, error) {
	set := Set{Name: name}
	var err error
	if set.State, err = fs.Sub(fsys, path.Join(name, "state")); err != nil {
		return Set{}, fmt.Errorf("the set %s: %w", name, err)
	}
	states, err := fs.Glob(set.State, "*.up.sql")
	if err != nil || len(states) == 0 {
		return Set{}, fmt.Errorf("the set %s has no state: %w", name, err)
	}
	if set.Latest, err = strconv.Atoi(states[len(states)-1][:6]); err != nil {
		return Set{}, fmt.Errorf("the set %s: %w", name, err)
	}
	if set.Baseline, err = set.notedBaseline(states[0]); err != nil {
		return Set{}, fmt.Errorf("the set %s: %w", name, err)
	}
	code, err := fs.Sub(fsys, path.Join(name, "code"))
	if err != nil {
		return Set{}, fmt.Errorf("the set %s: %w", name, err)
	}
	if err := set.readManifest(code); err != nil {
		return Set{}, fmt.Errorf("the set %s: %w", name, err)
	}
	return set, nil
}

// baselineNote ends the first step of a state.
var baselineNote = regexp.MustCompile(`(?m)^COMMENT ON SCHEMA [a-z]+ IS 'fencegate [a-z]+ state 1 ([0-9a-f]{12})';\n\z`)

func (s *Set) notedBaseline(step string) (string, error) {
	text, err := fs.ReadFile(s.State, step)
	if err != nil {
		return "", err
	}
	m := baselineNote.FindSubmatch(text)
	if m == nil {
		return "", fmt.Errorf("%s does not end with a note of its hash", step)
	}
	return string(m[1]), nil
}

// BaselineSum is the hash of a baseline's text as it is, without its note.
func BaselineSum(text []byte) string {
	if at := baselineNote.FindIndex(text); at != nil {
		text = text[:at[0]]
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:6])
}

// readManifest reads manifest.txt and the files that it lists.
func (s *Set) readManifest(code fs.FS) error {
	manifest, err := code.Open("manifest.txt")
	if err != nil {
		return err
	}
	defer func() { _ = manifest.Close() }()
	lines := bufio.NewScanner(manifest)
	for lines.Scan() {
		word, rest, _ := strings.Cut(lines.Text(), " ")
		switch word {
		case "", "#":
		case "revision":
			s.Code.Revision, err = strconv.Atoi(rest)
		case "hash":
			s.Code.Hash = rest
		case "min_program":
			s.Code.MinProgram, err = strconv.Atoi(rest)
		case "needs":
			s.Needs = new(Need)
			_, err = fmt.Sscanf(rest, "%s state %d revision %d", &s.Needs.Set, &s.Needs.State, &s.Needs.Revision)
		case "file":
			var text []byte
			text, err = fs.ReadFile(code, rest)
			s.Code.Files = append(s.Code.Files, File{Name: rest, Text: string(text)})
		default:
			err = fmt.Errorf("manifest.txt has a line that begins with %q", word)
		}
		if err != nil {
			return err
		}
	}
	return lines.Err()
}

// Sum is the hash of the files as they are.
func (c Code) Sum() string {
	h := sha256.New()
	for _, f := range c.Files {
		fmt.Fprintf(h, "%s %d\n%s", f.Name, len(f.Text), f.Text)
	}
	return hex.EncodeToString(h.Sum(nil))
}

const revoke = "REVOKE ALL ON "

// A statement beside each function and view grants its rights, with the argument types as PostgreSQL prints them.
var rights = regexp.MustCompile(`^` + revoke + `(?:FUNCTION |PROCEDURE )?(.*) FROM PUBLIC, fence_writer, fence_gateway(?:, fence_protector|, fence_locker)?;$`)

// Names lists all functions, procedures and views, for example fence.check_issued(text, bigint) and fence.protected.
func (c Code) Names() []string {
	var list []string
	for _, f := range c.Files {
		for line := range strings.Lines(f.Text) {
			if !strings.HasPrefix(line, revoke) { // a regexp over the whole text takes eight times as long
				continue
			}
			if m := rights.FindStringSubmatch(strings.TrimSuffix(line, "\n")); m != nil {
				list = append(list, m[1])
			}
		}
	}
	return list
}

const grant = "GRANT EXECUTE ON "

var grants = regexp.MustCompile(`^` + grant + `(?:FUNCTION|PROCEDURE) (.*) TO (PUBLIC|[a-z_, ]+);$`)

// Callers has the roles, PUBLIC among them, that may call each function and procedure of Names; the owner may call all.
func (c Code) Callers() map[string][]string {
	callers := map[string][]string{}
	for _, name := range c.Names() {
		if strings.HasSuffix(name, ")") { // no view
			callers[name] = nil
		}
	}
	for _, f := range c.Files {
		for line := range strings.Lines(f.Text) {
			if !strings.HasPrefix(line, grant) {
				continue
			}
			if m := grants.FindStringSubmatch(strings.TrimSuffix(line, "\n")); m != nil {
				callers[m[1]] = append(callers[m[1]], strings.Split(m[2], ", ")...)
			}
		}
	}
	return callers
}
