package migrate

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/migrations"
)

// Status says how far a database is migrated.
type Status struct {
	PreRelease int         // the version of a schema of a pre-release, which this program can't change; 0: none
	Sets       []SetStatus // of those that were asked for
	MinProgram int         // the oldest generation of programs that the database serves
	Missing    []string    // functions and views that somebody dropped
	Outside    []string    // functions and views in our schemas that no set has
	recorded   bool        // there is a record at all
}

// SetStatus says how far a set is.
type SetStatus struct {
	Set            string
	Version        int    // of the state in the database; 0: none
	Latest         int    // of this program
	Dirty          bool   // a step to Version was interrupted, or what is applied is another one; migrating again makes it good
	Revision       int    // of the code in the database; 0: none, or not any more since the state was changed
	LatestRevision int    // of this program
	Hash           string // of the code in the database, shortened
	Changed        bool   // the code in the database is another text of this program's revision
	recorded       bool   // the set's table is there
	noted          bool   // the schema's note can be read
}

// Look reports how far the database is migrated. Any login may ask; it changes nothing.
func Look(ctx context.Context, url string, which Set) (Status, error) {
	k, err := embedded()
	if err != nil {
		return Status{}, err
	}
	return k.lookAt(ctx, url, which)
}

func (k kit) lookAt(ctx context.Context, url string, which Set) (Status, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return Status{}, fmt.Errorf("migrate status: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	status, err := k.look(ctx, conn, which)
	return status, wrap("migrate status", err)
}

func (k kit) look(ctx context.Context, conn *pgx.Conn, which Set) (status Status, err error) {
	if status.PreRelease, err = preRelease(ctx, conn); err != nil || status.PreRelease > 0 {
		return status, err
	}
	code, err := recordedCode(ctx, conn)
	if err != nil {
		return status, err
	}
	status.recorded = code != nil
	for _, set := range k {
		if !which.has(set.Name) {
			continue
		}
		s, err := lookAtSet(ctx, conn, set, code[set.Name])
		if err != nil {
			return status, err
		}
		status.recorded = status.recorded || s.recorded
		status.MinProgram = max(status.MinProgram, code[set.Name].minProgram)
		status.Sets = append(status.Sets, s)
	}
	status.Missing, status.Outside, err = k.strangers(ctx, conn, status)
	return status, err
}

func lookAtSet(ctx context.Context, conn *pgx.Conn, set migrations.Set, code codeRecord) (SetStatus, error) {
	s := SetStatus{Set: set.Name, Latest: set.Latest, LatestRevision: set.Code.Revision}
	if err := conn.QueryRow(ctx, sqlIsThere, stateTable(set.Name)).Scan(&s.recorded); err != nil {
		return s, err
	}
	version, noted := int64(-1), s.recorded // also where the first step's removal was interrupted
	if s.recorded {
		err := conn.QueryRow(ctx, `SELECT version, dirty FROM `+stateTable(set.Name)).Scan(&version, &s.Dirty)
		if noted = !errors.Is(err, pgx.ErrNoRows); noted && err != nil {
			return s, err
		}
	}
	s.Version = int(max(version, 0))
	note, err := readNote(ctx, conn, set.Name)
	switch {
	case err != nil:
		return s, err
	case !note.known: // somebody wrote a comment of his own
		s.Revision, s.Hash = code.revision, code.hash
	case !noted: // a dump without the record, or migrated by other means
		s.Version = max(note.version, 0)
	case int64(note.version) != version:
		s.Dirty = true
	}
	if s.noted = note.known; note.known {
		s.Revision, s.Hash = note.revision, note.hash
	}
	s.Changed = s.Revision == set.Code.Revision && s.Hash != short(set.Code.Hash)
	return s, nil
}

// note is what the last step said of itself, in its transaction, in a comment on the
// set's schema. It is what counts: the record in the schema fencegate follows it.
type note struct {
	version  int // -1: the schema is not there
	revision int // of the code; 0: none since the state was changed
	hash     string
	known    bool // false: there is no such comment
}

var noteForm = regexp.MustCompile(`^fencegate (?:fence|objects) state ([1-9][0-9]{0,8})(?:, code ([1-9][0-9]{0,8}) ([0-9a-f]{12}))?$`)

const sqlNote = `SELECT pg_catalog.obj_description(oid, 'pg_namespace') FROM pg_catalog.pg_namespace WHERE nspname = $1`

func readNote(ctx context.Context, conn *pgx.Conn, set string) (note, error) {
	var text *string
	switch err := conn.QueryRow(ctx, sqlNote, set).Scan(&text); {
	case errors.Is(err, pgx.ErrNoRows):
		return note{version: -1, known: true}, nil
	case err != nil:
		return note{}, fmt.Errorf("look what is applied: %w", err)
	case text == nil:
		return note{}, nil
	}
	m := noteForm.FindStringSubmatch(*text)
	if m == nil {
		return note{}, nil
	}
	n := note{hash: m[3], known: true}
	n.version, _ = strconv.Atoi(m[1])  // digits, by the form
	n.revision, _ = strconv.Atoi(m[2]) // digits or ''
	return n, nil
}

// noteOf is the comment that says what is applied.
func noteOf(set string, version int, code migrations.Code) string {
	return fmt.Sprintf("fencegate %s state %d, code %d %s", set, version, code.Revision, short(code.Hash))
}

func short(hash string) string { return hash[:min(12, len(hash))] }

// of finds a set's status.
func (s Status) of(set string) (SetStatus, bool) {
	i := slices.IndexFunc(s.Sets, func(x SetStatus) bool { return x.Set == set })
	if i < 0 {
		return SetStatus{}, false
	}
	return s.Sets[i], true
}

// Installed reports whether the database has any of the sets.
func (s Status) Installed() bool {
	return slices.ContainsFunc(s.Sets, func(x SetStatus) bool { return x.Version > 0 })
}

// UpToDate reports whether each set is as this program has it.
func (s Status) UpToDate() bool {
	return s.PreRelease == 0 && len(s.Missing) == 0 && !slices.ContainsFunc(s.Sets, func(x SetStatus) bool { return !x.upToDate() })
}

func (s SetStatus) upToDate() bool {
	return s.Version == s.Latest && !s.Dirty && s.Revision == s.LatestRevision && !s.Changed
}

// Newer reports whether a newer program migrated the database, which this one leaves
// alone; see Serves.
func (s Status) Newer() bool { return slices.ContainsFunc(s.Sets, SetStatus.newer) }

func (s SetStatus) newer() bool { return s.Version > s.Latest || s.Revision > s.LatestRevision }

// Serves reports whether this program may go on with the database: it is up to date, or
// newer and does not say otherwise.
func (s Status) Serves() bool {
	return (s.UpToDate() || s.Newer()) && s.MinProgram <= migrations.Program
}

// String says it for people, in one line.
func (s Status) String() string {
	if s.PreRelease > 0 {
		return (&PreReleaseError{Version: s.PreRelease}).Error()
	}
	var sets []string
	for _, x := range s.Sets {
		sets = append(sets, x.String())
	}
	said := strings.Join(sets, "; ") + ": "
	switch {
	case s.MinProgram > migrations.Program:
		return said + fmt.Sprintf("it needs a program of generation %d, and this one is of %d: use a newer program", s.MinProgram, migrations.Program)
	case s.Newer():
		return said + "newer than this program: use a newer program"
	case slices.ContainsFunc(s.Sets, func(x SetStatus) bool { return x.Dirty }):
		return said + "a migration was interrupted: migrate up again"
	case len(s.Missing) > 0:
		return said + "somebody dropped " + strings.Join(s.Missing, ", ") + ": migrate up again"
	case !s.Installed():
		return said + "not migrated"
	case !s.UpToDate():
		return said + "migrate up"
	}
	return said + "up to date"
}

// String names the state and the code, such as "fence state 1 of 2, code pending".
func (s SetStatus) String() string {
	if s.Version == 0 && !s.Dirty {
		return fmt.Sprintf("no %s (this program has state %d, code %d)", s.Set, s.Latest, s.LatestRevision)
	}
	code := "code " + of(s.Revision, s.LatestRevision)
	switch {
	case s.Revision == 0:
		code = "code pending"
	case s.Changed:
		code += " with another text"
	}
	return fmt.Sprintf("%s state %s, %s", s.Set, of(s.Version, s.Latest), code)
}

func of(has, latest int) string {
	if has == latest {
		return strconv.Itoa(has)
	}
	return fmt.Sprintf("%d of %d", has, latest)
}
