package migrate

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/fencegate/fencegate/migrations"
)

// Status describes how far a database is migrated.
type Status struct {
	Sets       []SetStatus // the selected sets
	MinProgram int         // the oldest program generation that the database supports
	Missing    []string    // functions and views that were dropped
	Outside    []string    // functions and views in our schemas that belong to no set
}

// SetStatus describes how far a set is migrated.
type SetStatus struct {
	Set            string
	Version        int    // of the state in the database; 0: none
	Latest         int    // of this program
	Dirty          bool   // a step to Version was interrupted, or the applied version differs; migrating again repairs it
	Gone           bool   // somebody dropped the schema, and the record remains
	Revision       int    // of the code in the database; 0: none, or none since the state changed
	LatestRevision int    // of this program
	Hash           string // of the code in the database, shortened
	Changed        bool   // the database has this program's revision with a different text
	recorded       bool   // the set's table exists

	// Other says that another baseline than this program's made the set; nil: it did not. Version is then 0.
	Other *OtherBaselineError
}

// of returns a set's status.
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

// UpToDate reports whether each set is at this program's version.
func (s Status) UpToDate() bool {
	return len(s.Missing) == 0 && !slices.ContainsFunc(s.Sets, func(x SetStatus) bool { return !x.upToDate() })
}

func (s SetStatus) upToDate() bool {
	return s.Version == s.Latest && !s.Dirty && !s.Gone && s.Revision == s.LatestRevision && !s.Changed
}

// Newer reports whether a newer program migrated the database.
// This program does not change such a database; see Serves.
func (s Status) Newer() bool { return slices.ContainsFunc(s.Sets, SetStatus.newer) }

func (s SetStatus) newer() bool { return s.Version > s.Latest || s.Revision > s.LatestRevision }

// Serves reports whether this program can use the database: each
// set is up to date or newer, and none requires a newer program.
func (s Status) Serves() bool {
	behind := func(x SetStatus) bool { return !x.upToDate() && !x.newer() }
	return len(s.Missing) == 0 && !s.NeedsNewerProgram() && !slices.ContainsFunc(s.Sets, behind)
}

// NeedsNewerProgram reports whether the database requires a newer program than this one.
func (s Status) NeedsNewerProgram() bool { return s.MinProgram > migrations.Program }

// String describes the status in one line.
func (s Status) String() string {
	if other := s.Other(); other != nil {
		return other.Error()
	}
	var sets []string
	for _, x := range s.Sets {
		sets = append(sets, x.String())
	}
	said := strings.Join(sets, "; ") + ": "
	switch {
	case s.NeedsNewerProgram():
		return said + fmt.Sprintf("it needs a program of generation %d, and this one is of %d: use a newer program", s.MinProgram, migrations.Program)
	case s.Newer():
		return said + "newer than this program: use a newer program"
	case s.Gone():
		return said + s.gone().Error()
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

// String describes the state and the code, for example "fence state 1 of 2, code pending".
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

// Other returns the error for the first set that another baseline made; nil: none.
func (s Status) Other() *OtherBaselineError {
	if i := slices.IndexFunc(s.Sets, func(x SetStatus) bool { return x.Other != nil }); i >= 0 {
		return s.Sets[i].Other
	}
	return nil
}

// Gone reports whether somebody dropped a set's schema; see [GoneError].
func (s Status) Gone() bool { return s.gone() != nil }

// gone returns the error for a set whose schema was dropped; nil: none was.
func (s Status) gone() error {
	if i := slices.IndexFunc(s.Sets, func(x SetStatus) bool { return x.Gone }); i >= 0 {
		return &GoneError{Set: s.Sets[i].Set}
	}
	return nil
}

// GoneError reports that a set's schema was dropped without migrate down. A new one would start empty: it would accept tokens that
// the lost fences refused.
type GoneError struct{ Set string }

func (e *GoneError) Error() string {
	return fmt.Sprintf("the schema %s was dropped without migrate down, and all its data is lost: restore it from a backup, "+
		"or start empty with fencegate migrate down, which clears the record, and then migrate up", e.Set)
}

// NewerError reports that a newer program migrated the database.
type NewerError struct{ Status Status }

func (e *NewerError) Error() string { return "the database: " + e.Status.String() }
