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
	known    bool // false: there is no such comment
}

var noteForm = regexp.MustCompile(`^fencegate (?:fence|objects) state ([1-9][0-9]{0,8})(?:, code ([1-9][0-9]{0,8}) ([0-9a-f]{12}))?$`)

const sqlNote = `SELECT pg_catalog.obj_description(oid, 'pg_namespace') FROM pg_catalog.pg_namespace WHERE nspname = $1`

func readNote(ctx context.Context, conn querier, set string) (note, error) {
	var text *string
	switch err := conn.QueryRow(ctx, sqlNote, set).Scan(&text); {
	case errors.Is(err, pgx.ErrNoRows):
		return note{version: -1, known: true}, nil
	case err != nil:
		return note{}, fmt.Errorf("read which migrations are applied: %w", err)
	case text == nil:
		return note{}, nil
	}
	m := noteForm.FindStringSubmatch(*text)
	if m == nil {
		return note{}, nil
	}
	n := note{hash: m[3], known: true}
	n.version, _ = strconv.Atoi(m[1])  // the pattern admits only digits
	n.revision, _ = strconv.Atoi(m[2]) // digits or ''
	return n, nil
}

// trustedNote reads the note, and refuses a schema that is not fencegate's, with or without one.
func trustedNote(ctx context.Context, db querier, set string) (note, error) {
	n, err := readNote(ctx, db, set)
	if err != nil || n.version < 0 {
		return n, err
	}
	return n, mayTrust(ctx, db, set)
}

// noteOf returns the comment that records what is applied.
func noteOf(set string, version int, code migrations.Code) string {
	return fmt.Sprintf("fencegate %s state %d, code %d %s", set, version, code.Revision, short(code.Hash))
}

const sqlRecordedCode = `SELECT name, revision, hash, min_program FROM fencegate.code`

// codeRecord is a row of fencegate.code.
type codeRecord struct {
	revision   int
	hash       string
	minProgram int
}

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
	_, err = pgx.ForEachRow(rows, []any{&name, &r.revision, &r.hash, &r.minProgram}, func() error {
		r.hash = short(r.hash)
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

const (
	// The record or the note of a pre-release.
	sqlPreRelease     = `SELECT to_regclass('fencegate.migrations') IS NOT NULL, pg_catalog.obj_description(to_regnamespace('fence'), 'pg_namespace')`
	sqlPreReleaseFrom = `SELECT coalesce(max(version), 0)::int FROM fencegate.migrations`
	preReleaseNote    = "fencegate schema version "
)

// preRelease is the version of a schema that a pre-release made; 0: none did.
func preRelease(ctx context.Context, conn querier) (version int, err error) {
	var recorded bool
	var note *string
	if err := conn.QueryRow(ctx, sqlPreRelease).Scan(&recorded, &note); err != nil {
		return 0, err
	}
	if note != nil && strings.HasPrefix(*note, preReleaseNote) {
		version, _ = strconv.Atoi(strings.TrimPrefix(*note, preReleaseNote))
		return max(version, 1), nil
	}
	if !recorded {
		return 0, nil
	}
	err = conn.QueryRow(ctx, sqlPreReleaseFrom).Scan(&version)
	return max(version, 1), err
}

// DirtyError reports that a step was interrupted, and that the schema's note of its version, from which the state could
// be recovered, is missing or was changed.
type DirtyError struct {
	Set     string
	Version int
}

func (e *DirtyError) Error() string {
	return fmt.Sprintf("the migration of the set %[1]s to state %[2]d was interrupted. Each is one transaction, so it was applied entirely or not at all: "+
		"look whether its objects exist (migrations/%[1]s/state/%06[2]d_*). If they do, run: UPDATE %[3]s SET dirty = false; "+
		"if not, set version to the one before it as well, or DELETE FROM %[3]s where it was the first. Then migrate again", e.Set, e.Version, stateTable(e.Set))
}

// PreReleaseError reports that a pre-release made the schema. Its version numbers mean other steps.
type PreReleaseError struct{ Version int }

func (e *PreReleaseError) Error() string {
	return fmt.Sprintf("the schema was made by a pre-release (version %d), and this program can't upgrade it. Take out what you need: "+
		"the objects through the S3 port, your own tables stay. Then let that pre-release remove its schema (fencegate migrate down --force), "+
		"which forgets every fence, object and guard; or, where it is gone: DROP SCHEMA objects, fence, fencegate CASCADE. "+
		"Then migrate up with this program, and protect the tables again", e.Version)
}
