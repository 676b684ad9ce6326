package migrate

import (
	"fmt"
	"slices"
	"sync"

	"github.com/fencegate/fencegate/migrations"
)

// Set selects a part of the SQL.
type Set int

// The parts. The objects need the fence.
const (
	All     Set = iota // the fence, and the S3 port's objects
	Fence              // the fence alone
	Objects            // the objects alone; the fence must exist
)

const (
	schema = "fencegate"

	// lockKey serializes the processes that migrate one database: 'fencegat' in ASCII.
	lockKey = 0x66656e6365676174

	sqlRecord = `CREATE SCHEMA IF NOT EXISTS fencegate;
CREATE TABLE IF NOT EXISTS fencegate.code (
  name        text PRIMARY KEY,   -- of the set
  revision    integer NOT NULL,
  hash        text NOT NULL,
  min_program integer NOT NULL,   -- the oldest generation of programs that may go on with it
  applied_at  timestamptz NOT NULL DEFAULT pg_catalog.now()
)`
	sqlStateTable = `CREATE TABLE IF NOT EXISTS %s (version bigint NOT NULL PRIMARY KEY, dirty boolean NOT NULL)`
	// A gateway's login may read the status.
	sqlPublish    = `GRANT USAGE ON SCHEMA fencegate TO PUBLIC; GRANT SELECT ON ALL TABLES IN SCHEMA fencegate TO PUBLIC`
	sqlDropSchema = `DROP SCHEMA fencegate CASCADE`
	sqlIsThere    = `SELECT to_regclass($1) IS NOT NULL`
)

// kit holds the sets that a program knows, each after those that it needs.
type kit []migrations.Set

// embedded is this program's kit.
var embedded = sync.OnceValues(func() (kit, error) {
	var k kit
	for _, name := range []string{"fence", "objects"} {
		set, err := migrations.Load(migrations.FS, name)
		if err != nil {
			return nil, err
		}
		k = append(k, set)
	}
	return k, nil
})

// set returns the set of this name, which exists.
func (k kit) set(name string) migrations.Set {
	return k[slices.IndexFunc(k, func(s migrations.Set) bool { return s.Name == name })]
}

// has reports whether a set is selected.
func (s Set) has(name string) bool {
	return s == All || s == Fence && name == "fence" || s == Objects && name == "objects"
}

// stateTable is where golang-migrate keeps the version of a set's state.
func stateTable(set string) string { return schema + "." + set + "_state" }

func short(hash string) string { return hash[:min(12, len(hash))] }

// wrap adds the action to an error; nil stays nil.
func wrap(doing string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// NeedError reports that another set, which this one needs, is missing or too old.
type NeedError struct {
	Set  string
	Need migrations.Need
}

func (e *NeedError) Error() string {
	return fmt.Sprintf("the set %s needs the set %s at state %d, code %d or newer: migrate that first", e.Set, e.Need.Set, e.Need.State, e.Need.Revision)
}

// NeededError reports that another set needs the one that is to be removed.
type NeededError struct{ Set, By string }

func (e *NeededError) Error() string {
	return fmt.Sprintf("the set %[2]s is there and needs the set %[1]s: remove the %[2]s first, or both", e.Set, e.By)
}
