package migrate

import (
	"fmt"
	"sync"

	"github.com/fencegate/fencegate/migrations"
)

// Set says which part of the SQL is meant.
type Set int

// The parts. The objects need the fence.
const (
	All     Set = iota // the fence, and the objects of the S3 port
	Fence              // the fence alone
	Objects            // the objects alone, where the fence is there
)

const (
	schema = "fencegate"

	// lockKey orders the processes that migrate one database: 'fencegat' in ASCII.
	lockKey = 0x66656e6365676174

	sqlLock   = `SELECT pg_catalog.pg_advisory_lock($1)`
	sqlRecord = `CREATE SCHEMA IF NOT EXISTS fencegate;
CREATE TABLE IF NOT EXISTS fencegate.code (
  name        text PRIMARY KEY,   -- of the set
  revision    integer NOT NULL,
  hash        text NOT NULL,
  min_program integer NOT NULL,   -- the oldest generation of programs that may go on with it
  applied_at  timestamptz NOT NULL DEFAULT pg_catalog.now()
)`
	sqlStateTable = `CREATE TABLE IF NOT EXISTS %s (version bigint NOT NULL PRIMARY KEY, dirty boolean NOT NULL)` // as golang-migrate has it
	// A gateway's login may ask for the status.
	sqlPublish    = `GRANT USAGE ON SCHEMA fencegate TO PUBLIC; GRANT SELECT ON ALL TABLES IN SCHEMA fencegate TO PUBLIC`
	sqlDropSchema = `DROP SCHEMA fencegate CASCADE`
	sqlIsThere    = `SELECT to_regclass($1) IS NOT NULL`
)

// kit is the sets that a program knows, each after those that it needs.
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

// has reports whether a set is meant.
func (s Set) has(name string) bool {
	return s == All || s == Fence && name == "fence" || s == Objects && name == "objects"
}

// stateTable is where golang-migrate keeps the version of a set's state.
func stateTable(set string) string { return schema + "." + set + "_state" }

func short(hash string) string { return hash[:min(12, len(hash))] }

// wrap adds what was done to an error, and nothing to nil.
func wrap(doing string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// NeedError says that a set lacks what it needs of another one.
type NeedError struct {
	Set  string
	Need migrations.Need
}

func (e *NeedError) Error() string {
	return fmt.Sprintf("the set %s needs the set %s at state %d, code %d or newer: migrate that first", e.Set, e.Need.Set, e.Need.State, e.Need.Revision)
}

// NeededError says that another set needs the one that is to go.
type NeededError struct{ Set, By string }

func (e *NeededError) Error() string {
	return fmt.Sprintf("the set %[2]s is there and needs the set %[1]s: remove the %[2]s first, or both", e.Set, e.By)
}
