package migrate

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/migrations"
)

// note is what the last step recorded in its own transaction, in a comment on the set's schema. It is authoritative:
// the record in the schema fencegate follows it.
type note struct {
	version  int // -1: the schema does not exist
	revision int // of the code; 0: none since the state changed
	hash     string
	known    bool   // false: there is no such comment
	other    string // the comment, if another baseline made the schema
}

var noteForm = regexp.MustCompile(`^fencegate (?:fence|objects) state ([1-9][0-9]{0,8}) ([0-9a-f]{12})(?:, code ([1-9][0-9]{0,8}) ([0-9a-f]{12}))?$`)

const sqlNote = `SELECT pg_catalog.obj_description(oid, 'pg_namespace') FROM pg_catalog.pg_namespace WHERE nspname = $1`

func readNote(ctx context.Context, conn querier, set migrations.Set) (note, error) {
	var text *string
	switch err := conn.QueryRow(ctx, sqlNote, set.Name).Scan(&text); {
	case errors.Is(err, pgx.ErrNoRows):
		return note{version: -1, known: true}, nil
	case err != nil:
		return note{}, fmt.Errorf("read which migrations are applied: %w", err)
	case text == nil || !strings.HasPrefix(*text, "fencegate "):
		return note{}, nil
	}
	m := noteForm.FindStringSubmatch(*text)
	if m == nil || m[2] != set.Baseline {
		return note{known: true, other: *text}, nil
	}
	n := note{hash: m[4], known: true}
	n.version, _ = strconv.Atoi(m[1])  // the pattern admits only digits
	n.revision, _ = strconv.Atoi(m[3]) // digits or ''
	return n, nil
}

// trustedNote reads the note, and refuses a schema that is not fencegate's, with or without one.
func trustedNote(ctx context.Context, db querier, set migrations.Set) (note, error) {
	n, err := readNote(ctx, db, set)
	if err != nil || n.version < 0 {
		return n, err
	}
	return n, mayTrust(ctx, db, set.Name)
}

// stateNote returns the comment that records a state; the state's steps have it.
func stateNote(set migrations.Set, version int) string {
	return fmt.Sprintf("fencegate %s state %d %s", set.Name, version, set.Baseline)
}

// noteOf returns the comment that records all that is applied.
func noteOf(set migrations.Set) string {
	return fmt.Sprintf("%s, code %d %s", stateNote(set, set.Latest), set.Code.Revision, short(set.Code.Hash))
}

const sqlRecordedCode = `SELECT name, revision, min_program FROM fencegate.code`

// codeRecord is a row of fencegate.code.
type codeRecord struct{ revision, minProgram int }

// recordedCode reads the record; nil: there is none.
func recordedCode(ctx context.Context, conn querier) (map[string]codeRecord, error) {
	var has bool
	if err := conn.QueryRow(ctx, sqlIsThere, "fencegate.code").Scan(&has); err != nil || !has {
		return nil, err
	}
	code := map[string]codeRecord{}
	rows, err := conn.Query(ctx, sqlRecordedCode)
	if err != nil {
		return nil, err
	}
	var name string
	var r codeRecord
	_, err = pgx.ForEachRow(rows, []any{&name, &r.revision, &r.minProgram}, func() error {
		code[name] = r
		return nil
	})
	return code, err
}

// makeRecord creates the record if it is missing, and lets everyone
// read it. It refuses a record that another role made in the meantime.
func makeRecord(ctx context.Context, conn *pgx.Conn, sets kit) error {
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, sqlPlain); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, sqlRecord); err != nil {
			return err
		}
		if err := mayWrite(ctx, tx); err != nil {
			return err
		}
		for _, set := range sets {
			if _, err := tx.Exec(ctx, fmt.Sprintf(sqlStateTable, stateTable(set.Name))); err != nil {
				return err
			}
		}
		_, err := tx.Exec(ctx, sqlPublish)
		return err
	})
}

// sqlPreRelease reports whether the database has the record of a pre-release, which had one set.
const sqlPreRelease = `SELECT to_regclass('fencegate.migrations') IS NOT NULL`

// OtherBaselineError reports that another baseline than this program's made a set's schema, so that its tables are
// others. Until the first version a change of the tables edits the baseline, and no step leads from one to another.
type OtherBaselineError struct {
	Set    string
	Record string // what the database says; "": the comment on the schema was lost, and the record has a state of this program
	Want   string // the comment that this program's baseline leaves
}

func (e *OtherBaselineError) Error() string {
	const remake = "Before the first version such a database is not upgraded but made again. Save your own schemas with pg_dump; then " +
		"DROP DATABASE, or: DROP SCHEMA IF EXISTS fence_events CASCADE; DROP SCHEMA IF EXISTS objects, fence, fencegate CASCADE; " +
		"which forgets every fence, object and guard. Then fencegate migrate up, and protect the tables again"
	if e.Record == "" {
		return fmt.Sprintf("the comment on the schema %[1]s is not fencegate's, so nothing says which baseline made the set %[1]s. "+
			"If it was this program's, as in a dump without comments, put the comment back: COMMENT ON SCHEMA %[1]s IS '%[2]s'; then migrate up. If not: %[3]s", e.Set, e.Want, remake)
	}
	return fmt.Sprintf("another baseline made the set %s: the database has %s, and this program %q. %s", e.Set, e.Record, e.Want, remake)
}
